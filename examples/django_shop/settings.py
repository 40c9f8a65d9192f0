"""Settings of the shop. The environment variable NAMESRV_ADDR names the name servers."""

from pathlib import Path

DEBUG = True
SECRET_KEY = "only for this example"
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path.cwd() / "shop.sqlite3"}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
