# ruff: noqa
# expect file: clean
import psycopg
from fastapi import APIRouter, Response

router = APIRouter(prefix="/hooks")


class Deliveries:
    def __init__(self, dsn):
        self.dsn = dsn

    def apply(self, event):
        with psycopg.connect(self.dsn) as conn:
            try:
                conn.execute("INSERT INTO deliveries (event_id) VALUES (%s)", (event["id"],))
            except psycopg.errors.UniqueViolation:
                return False
            conn.execute("UPDATE shops SET sales = sales + %s WHERE id = %s", (event["cents"], event["shop"]))
        return True


deliveries = Deliveries("dbname=x")


@router.post("/sales")
def sale(event: dict):
    return Response(status_code=201 if deliveries.apply(event) else 200)
