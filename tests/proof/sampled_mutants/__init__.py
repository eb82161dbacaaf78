"""Sampled mutation tests: random single-point mutants of our own code, each run against the tests nearest to it.

    make mutants N=200 SEED=7          sample 200 mutants of all rooms, print the survivors and the rate of each room
    make mutants N=30 ARGS="--rooms inbox relay --json mutants.json"
    make mutants ARGS="--at guard/once.py:120"        every mutant of one line (or of one file)

A mutant is one small change in one place: a comparison, a condition, a removed call, a number (`mutations`). It is
written into a copy of the checkout (`checkout_copy`); the checkout itself is never edited. A room is a folder of the
package, with the tests that are near it (`nearest_tests`). Of these, the quick ones that reach the changed line run
(`selection`) until one fails: then the mutant is killed. Which lines a test reaches is measured once, and kept in
`.mutants_cache` until the test or the code that it runs changes (`reach_cache`). All mutants share one set of servers.
A run that takes too long as a whole kills nothing: try that mutant again with ``--at`` when the machine is quiet.
Mutants that no test can tell from the original are left out by rule (`mutations`), or one by one, each with its reason
(`equivalents`). SQL and Lua are not mutated here: the mutants of the conformance suites in tests/backends do that.

Alternatives: mutmut measures the coverage of the whole suite before its first mutant, changes function bodies only and
draws no sample; cosmic-ray edits the checkout and has one test command for all files; mutatest samples, but into the
checkout's caches, and is no longer maintained. None can share our servers.
"""
