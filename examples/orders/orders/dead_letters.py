"""A page on which a person sends dead letters again, or drops them, and sees why they failed.

Dead letters stay in the topic of their group until the broker deletes them; the table of decisions
says which ones are done.
"""

from html import escape
from typing import Literal

from fastapi import APIRouter, HTTPException
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy import select

from cometmq.client import AdminClient
from cometmq.client.admin import DeadLetter
from orders.bus import servers
from orders.messages import GROUPS
from orders.models import Decision, sessions

PAGE, PAGES_MAX = 100, 10
"""At most 1,000 dead letters of a group are read; ``cometmq admin dlq`` reads more."""
router = APIRouter(prefix="/dead-letters", tags=["dead letters"])


async def undecided(admin: AdminClient, group: str) -> list[DeadLetter]:
    """Return the dead letters of a group that wait for a decision, oldest first."""
    found: list[DeadLetter] = []
    page = await admin.dead_letters(group, limit=PAGE)
    for _ in range(PAGES_MAX):
        places = [letter.position for letter in page.letters]
        async with sessions() as session:
            wanted = select(Decision.letter).where(Decision.letter.in_(places))
            done = set(await session.scalars(wanted))
        found += [letter for letter in page.letters if letter.position not in done]
        if not page.rest or len(found) >= PAGE:
            break
        page = await admin.dead_letters(group, limit=PAGE, ranges=page.rest)
    return found


@router.get("", response_class=HTMLResponse)
async def show() -> str:
    async with AdminClient(servers) as admin:
        groups = [each.group for each in await admin.dead_letter_counts()]
        ours = [group for group in groups if group.startswith(GROUPS)]
        letters = [letter for group in ours for letter in await undecided(admin, group)]
    rows = "".join(map(row, letters)) or "<tr><td>There are none.</td></tr>"
    return f"<!doctype html><title>Dead letters</title><h1>Dead letters</h1><table>{rows}</table>"


def row(letter: DeadLetter) -> str:
    body = letter.message.body.decode("utf8", "replace")
    cells = (letter.group, letter.error or "not recorded", body)
    action = f"/dead-letters/{escape(letter.group)}/{escape(letter.message.offset_message_id)}"
    buttons = "".join(
        f'<form method="post" action="{action}/{decision}"><button>{text}</button></form>'
        for decision, text in (("resend", "send again"), ("drop", "drop"))
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}<td>{buttons}</td></tr>"


@router.post("/{group}/{letter_id}/{decision}")
async def decide(
    group: str, letter_id: str, decision: Literal["resend", "drop"]
) -> RedirectResponse:
    async with AdminClient(servers) as admin:
        letters = await admin.find_dead_letters(group, message_id=letter_id)
        if not letters or not group.startswith(GROUPS):
            raise HTTPException(404, "there is no such dead letter")
        if decision == "resend":  # nothing is sent twice: a second click finds the copy
            (result,) = await admin.resend_dead_letters(letters[:1])
            if result.status.value == "failed":
                raise HTTPException(503, result.reason)
    async with sessions.begin() as session:
        await session.merge(Decision(letter=letters[0].position, decision=decision))
    return RedirectResponse("/dead-letters", status_code=303)
