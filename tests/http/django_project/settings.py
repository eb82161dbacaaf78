"""The settings of a project whose database, and whatever else a test changes, come from the environment."""

import json
import os

SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
DATABASES = {"default": json.loads(os.environ["DATABASE"])}
ROOT_URLCONF = "tests.http.django_project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "effectonce.integrations.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "effectonce.integrations.django.IdempotencyMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
EFFECTONCE = {"STORE": "default", "SERVICE": "shop", "PRINCIPAL": "effectonce.integrations.django.user_id"}
if "EFFECTONCE_SETTING" in os.environ:
    EFFECTONCE = json.loads(os.environ["EFFECTONCE_SETTING"])

if DATABASES["default"]["ENGINE"].endswith("mysql"):  # through PyMySQL, where Django asks for mysqlclient
    import pymysql

    pymysql.version_info = (2, 2, 7, "final", 0)
    pymysql.install_as_MySQLdb()
