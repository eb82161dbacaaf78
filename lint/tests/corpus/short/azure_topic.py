# ruff: noqa
# expect file: P11
import azure.functions as func
import pyodbc, json
app = func.FunctionApp()
@app.function_name(name="q")
@app.service_bus_topic_trigger(arg_name="message", topic_name="t", subscription_name="s", connection="c")
def run(message: func.ServiceBusMessage) -> None:
    d = json.loads(message.get_body())
    with pyodbc.connect("DSN=x") as c:
        c.execute("UPDATE inventory SET qty = qty - ? WHERE sku = ?", d["qty"], d["sku"])
