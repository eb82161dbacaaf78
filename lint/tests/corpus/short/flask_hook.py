# ruff: noqa
# expect file: P11
from flask import Flask, request, jsonify
import sqlite3
app = Flask(__name__)
@app.route("/hooks/github", methods=["POST"])
def gh():
    db = sqlite3.connect("x.db")
    db.execute("INSERT INTO pushes (repo, sha) VALUES (?, ?)", (request.json["repo"], request.json["after"]))
    db.commit()
    return jsonify(ok=True)
