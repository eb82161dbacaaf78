"""The dashboard: what ran, what is stuck, what is in doubt, and the button that fixes it safely.

    effectonce dashboard --store postgresql://… --worker shop.worker:worker

`sources` holds what it shows, `poller` reads the figures of the overview in a thread of its own, `access` decides who
may look and who may act, `pages` answer requests in the threads of `view_pool`, `app` puts them together. Pages are
rendered here; the scripts in ``static`` only draw the live plots. The dashboard contacts no host but those it is given.
"""
