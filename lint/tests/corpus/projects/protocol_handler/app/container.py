# ruff: noqa
from dependency_injector import containers, providers
