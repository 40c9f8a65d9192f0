"""The orders of the shop."""

from django.db import models


class Order(models.Model):
    article = models.CharField(max_length=80, unique=True)
    packed = models.BooleanField(default=False)
