"""One search for everything that is known about an order: records, intents, sagas, inbox, outbox and dead letters.

    for answer in search("ORDER-42", SearchPlaces(store)):
        print(answer.place, answer.matches, answer.problem)

`search.search` asks all places side by side. Each answers by itself: what it has found, where it did not look, or why
it could not be asked.
"""
