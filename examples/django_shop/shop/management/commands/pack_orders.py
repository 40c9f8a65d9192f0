"""The worker: ``python manage.py pack_orders`` consumes orders until SIGTERM or Ctrl-C."""

from django.core.management.base import BaseCommand
from django.db import close_old_connections
from shop.messages import TOPIC
from shop.models import Order

from cometmq.client import StartFrom, StoredMessage
from cometmq.client.blocking import PushConsumer


class Command(BaseCommand):
    help = "Pack orders until SIGTERM"

    def handle(self, *args: object, **options: object) -> None:
        PushConsumer(
            group="django-packers",
            handler=self.pack,
            subscriptions={TOPIC: "*"},
            start_from=StartFrom.FIRST,
            concurrency=4,
        ).run()

    def pack(self, message: StoredMessage) -> None:  # runs in a thread
        close_old_connections()  # as Django does before and after each request
        try:
            number = int(message.body)
            if Order.objects.filter(pk=number, packed=False).update(packed=True):
                self.stdout.write(f"packed {Order.objects.get(pk=number).article}")
        finally:
            close_old_connections()
