"""The dashboard: what ran, what is stuck, what is in doubt, and the button that fixes it safely.

    effectonce dashboard --store postgresql://… --worker shop.worker:worker

`sources` is what it looks at, `watching` reads the figures of the overview in a thread of its own, `access` says who
may look and who may act, `pages` answer requests, `app` puts them together. Pages are rendered here; the scripts in
``static`` draw the live plots and are needed for nothing else. Nothing is asked of another host but what it is given.
"""
