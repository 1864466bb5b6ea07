"""limits over redis-py: python3 python.py PORT DECISIONS moving|counter threads|asyncio

64 callers, 100,000 keys, 100 a minute for each. Prints decisions per second and who made them.
"""

import asyncio
import random
import sys
import threading
import time
from importlib.metadata import version

from limits import RateLimitItemPerMinute, aio, storage, strategies

port, decisions, strategy, way = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
CALLERS = 64
limit = RateLimitItemPerMinute(100)


def limiter(of, store):
    if strategy == "moving":
        return of.MovingWindowRateLimiter(store)
    return of.SlidingWindowCounterRateLimiter(store)


def key():
    return f"user:{random.randrange(100_000):07}"


def with_threads():
    asked = limiter(strategies, storage.RedisStorage(f"redis://127.0.0.1:{port}"))

    def caller(count):
        for _ in range(count):
            asked.hit(limit, key())

    def everybody(count):
        threads = [threading.Thread(target=caller, args=(count // CALLERS,)) for _ in range(CALLERS)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start

    everybody(10 * CALLERS)  # everybody is connected before the clock starts
    return everybody(decisions)


async def with_asyncio():
    store = aio.storage.RedisStorage(f"async+redis://127.0.0.1:{port}", implementation="redispy")
    asked = limiter(aio.strategies, store)

    async def caller(count):
        for _ in range(count):
            await asked.hit(limit, key())

    async def everybody(count):
        start = time.perf_counter()
        await asyncio.gather(*(caller(count // CALLERS) for _ in range(CALLERS)))
        return time.perf_counter() - start

    await everybody(10 * CALLERS)
    return await everybody(decisions)


seconds = with_threads() if way == "threads" else asyncio.run(with_asyncio())
python = ".".join(map(str, sys.version_info[:3]))
made = decisions // CALLERS * CALLERS
print(made / seconds, f"limits {version('limits')}, redis-py {version('redis')}, Python {python}")
