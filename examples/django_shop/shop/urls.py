"""One view: an order is sent when its transaction has committed, and never before."""

from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.http import require_POST
from shop.messages import send_order
from shop.models import Order


@require_POST
def buy(request: HttpRequest, article: str) -> HttpResponse:
    order = Order(article=article)
    try:
        with transaction.atomic():
            transaction.on_commit(lambda: send_order(order.pk))
            order.save()  # if it fails, nothing is sent
    except IntegrityError:
        return HttpResponse("sold already\n", status=409)
    return HttpResponse(f"order {order.pk}\n")


urlpatterns = [path("buy/<str:article>", buy)]
