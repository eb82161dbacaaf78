# ruff: noqa
import psycopg
from fastapi import APIRouter

router = APIRouter()


@router.post("/bank")
def bank(event: dict):
    with psycopg.connect("dbname=x") as conn:
        conn.execute("UPDATE purse SET cents = cents + %s WHERE id = %s", (event["cents"], event["purse"]))
