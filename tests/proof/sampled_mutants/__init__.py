"""Random single-point mutants of our own code, each run against the tests nearest to it: do those have teeth?

    make mutants N=200 SEED=7          sample 200 mutants of every room, print who survived and the rate of each room
    make mutants N=30 ARGS="--rooms inbox relay --json mutants.json"
    make mutants ARGS="--at guard/once.py:120"        every mutant of one line (or of one file)

A mutant is one small change of one place: a comparison, a condition, a removed call, a number (`mutations`). It is put
into a copy of the checkout (`checkout_copy`), which itself is never edited. The tests of the same folder run, in the
quick tier and of these the ones that reach the changed line (`selection`), until the first failure; the servers are
started once for all mutants (`nearest_tests`).
Mutants that no test can tell from the original are left out by rule (`mutations`), or one by one, each with its reason
(`equivalents`). SQL and Lua are not mutated here: the conformance suites' mutants in tests/backends are about those.

Looked at first: mutmut measures the coverage of the whole suite before its first mutant, changes function bodies only
and draws no sample; cosmic-ray edits the checkout and has one test command for all files; mutatest samples, but into
the checkout's caches, and is no longer kept. None shares our servers.
"""
