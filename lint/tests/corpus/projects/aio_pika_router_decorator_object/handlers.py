# ruff: noqa
from router import router
from db import database
@router.route("user.registered")
async def registered(payload):
    query = "INSERT INTO mailing_list (email) VALUES (:email)"
    await database.execute(query, {"email": payload["email"]})
