# ruff: noqa
# expect file: clean
import redis

client = redis.Redis(decode_responses=True)


def main():
    while True:
        response = client.xreadgroup("g", "c1", {"profiles": ">"}, count=1, block=2000)
        if not response:
            continue
        for stream, messages in response:
            for message_id, data in messages:
                client.hset(f"profile:{data['user']}", mapping=data)
                client.xack(stream, "g", message_id)


if __name__ == "__main__":
    main()
