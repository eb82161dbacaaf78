# ruff: noqa
from databases import Database
database = Database("postgresql://")
