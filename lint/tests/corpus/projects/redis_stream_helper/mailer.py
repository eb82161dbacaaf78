# ruff: noqa
from postmarker.core import PostmarkClient

class Mailer:
    def __init__(self):
        self._client = PostmarkClient(server_token="t")

    def deliver(self, to, template):
        self._client.emails.send_with_template(From="a@b.c", To=to, TemplateAlias=template, TemplateModel={})
