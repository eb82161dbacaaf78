# ruff: noqa
# expect file: EO103
import psycopg
import resend
from procrastinate import App, PsycopgConnector
from psycopg.errors import UniqueViolation

app = App(connector=PsycopgConnector())


@app.task
def thank(donation, email):
    resend.Emails.send({"to": email, "subject": "Thanks", "html": "x"}, {"idempotency_key": f"t/{donation}"})
    from slack_sdk import WebClient

    WebClient().chat_postMessage(channel="#d", text=f"{email} gave")
    try:
        with psycopg.connect("dbname=x") as conn:
            conn.execute("INSERT INTO thanked (donation) VALUES (%s)", (donation,))
    except UniqueViolation:
        pass
