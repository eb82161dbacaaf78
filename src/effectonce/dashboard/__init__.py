"""The dashboard: what ran, what is stuck, what is in doubt, and the button that fixes it safely.

    effectonce dashboard --store postgresql://… --worker shop.worker:worker

`sources` reads the stores and brokers that it shows, `poller` polls the figures of the overview in a thread of its own,
and `access` decides who may look and who may act. The views in `pages` run in the threads of `view_pool`; `app` routes
requests to them. Pages are rendered on the server; the scripts in ``static`` only draw the live plots. The dashboard
contacts no host but those it is configured with.
"""
