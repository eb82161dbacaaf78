"""Every kind of connection that the inbox and the outbox join: see `base`."""

from .base import KINDS as KINDS
from .base import CallerConnection as CallerConnection
from .base import Kind as Kind
from .base import Place as Place
from .base import observers as observers
from .base import run as run
from .base import run_sync as run_sync
from .drivers import pymysql_conn as pymysql_conn
from .drivers import sqlite as sqlite
from .orms import django_connection as django_connection
