# ruff: noqa
from sqlalchemy import create_engine
engine = create_engine("postgresql://")
