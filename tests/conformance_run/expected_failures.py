"""Tests of the conformance suites that fail because the server does not have a feature yet.

All of them are strict: a listed test that passes is an error, so remove the lines of a feature
when you build it. They run in every tier, because they fail at the server's first refusal. Only
the tests in ``SLOW_TO_FAIL``, which wait for their timeout, are left to ``make test-all``
(``COMETMQ_TIER=all``): other tests of the same features run in every tier.
"""

from __future__ import annotations

from expectations import Expected

_POP = "the broker refuses POP requests"
_TIMERS = "the broker refuses timer messages and their recall"
_PLAIN_ACL = "the broker checks no signatures, permissions or addresses (plain_acl.yml)"
_AUTH = "the broker has no users and policies (auth 2.0)"

EXPECTED = {
    "protocol": Expected(
        failing={
            "test_pop.py": _POP,
            "test_timers.py": _TIMERS,
        },
        passing=(
            "test_timers.py::test_answers_without_a_handle",
            "test_timers.py::test_timer_check_point",  # for slaves
        ),
    ),
    "acl-plain": Expected(
        failing={
            "test_plain_admin.py": _PLAIN_ACL,
            "test_plain_permissions.py": _PLAIN_ACL,
            "test_plain_reload.py": _PLAIN_ACL,
            "test_plain_requests.py": _PLAIN_ACL,
            "test_plain_signature.py": _PLAIN_ACL,
            "test_plain_white.py": _PLAIN_ACL,
        },
        passing=(  # what is allowed is allowed without access control, too
            "test_plain_permissions.py::test_administrator_may_everything",
            "test_plain_permissions.py::test_batch_send_with_permission",
            "test_plain_permissions.py::test_default_topic_permission",
            "test_plain_permissions.py::test_pull_with_permission",
            "test_plain_permissions.py::test_retry_topic_is_the_group[AclGroupBoth-True]",
            "test_plain_permissions.py::test_retry_topic_is_the_group[AclGroupSub-True]",
            "test_plain_permissions.py::test_send_with_permission",
            "test_plain_permissions.py::test_trace_topic_is_open_to_producers",
            "test_plain_reload.py::test_broken_file",
            "test_plain_requests.py::test_administration",
            "test_plain_requests.py::test_consumer_needs_sub_only",
            "test_plain_requests.py::test_heartbeat_of_producers_needs_nothing",
            "test_plain_requests.py::test_members_of_a_group",
            "test_plain_requests.py::test_name_server_checks_nothing",
            "test_plain_requests.py::test_producer_needs_pub_only",
            "test_plain_signature.py::test_heartbeat_has_only_the_fields_of_the_signature",
            "test_plain_signature.py::test_old_clients_do_not_sign_the_unique_key_flag",
            "test_plain_signature.py::test_right_signature",
            "test_plain_signature.py::test_right_signature_with_a_binary_header",
            "test_plain_signature.py::test_right_signature_without_a_body",
            "test_plain_signature.py::test_values_that_look_empty",
            "test_plain_white.py::test_account_address",
            "test_plain_white.py::test_global_address_forgives_everything",
            "test_plain_white.py::test_global_address_needs_no_account",
            "test_plain_white.py::test_white_account_may_administer",
        ),
    ),
    "acl-auth": Expected(
        failing={
            "test_auth_decisions.py": _AUTH,
            "test_auth_policies.py": _AUTH,
            "test_auth_requests.py": _AUTH,
            "test_auth_users.py": _AUTH,
        },
        passing=(
            "test_auth_users.py::test_configuration_does_not_show_passwords",
            "test_auth_users.py::test_name_server_checks_nothing",
            "test_auth_users.py::test_request_that_is_never_checked",
            "test_auth_users.py::test_super_users_of_the_configuration",
            "test_auth_users.py::test_unique_key_flag_by_version",
        ),
    ),
}
"""By suite; see ``run.py``."""

SLOW_TO_FAIL = (
    "test_plain_reload.py::test_further_file",
    "test_pop.py::test_acknowledge",
    "test_pop.py::test_acknowledged_message_does_not_come_again",
    "test_pop.py::test_answer_of_a_changed_invisible_time",
    "test_pop.py::test_batch_acknowledgement",
    "test_pop.py::test_broker_makes_no_dead_letters",
    "test_pop.py::test_consumers_of_a_group_share",
    "test_pop.py::test_dead_letter_after_the_last_retry",
    "test_pop.py::test_dead_letter_lives_again",
    "test_pop.py::test_dead_letter_of_a_popped_message",
    "test_pop.py::test_longer_invisible_time",
    "test_pop.py::test_offset_out_of_range_says_why",
    "test_pop.py::test_pop_retry_topic",
    "test_pop.py::test_popped_messages_are_invisible",
    "test_pop.py::test_receipt_after_a_change",
    "test_pop.py::test_receipt_of_another_pop",
    "test_pop.py::test_receipt_that_cannot_be_read",
    "test_pop.py::test_receipts_that_are_refused",
    "test_pop.py::test_retries_are_counted",
    "test_pop.py::test_shorter_invisible_time",
    "test_pop.py::test_unacknowledged_message_comes_again",
)
"""Expected failures that take five seconds and more each, two minutes together."""
