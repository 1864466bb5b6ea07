"""limits over redis-py: python3 python.py PORT DECISIONS moving|counter threads|asyncio

64 callers, 100,000 keys, 100 a minute for each. Prints decisions per second and the versions of the libraries.
"""

import asyncio
import random
import sys
import threading
import time
from importlib.metadata import version

from limits import RateLimitItemPerMinute, aio, storage, strategies

port, decisions, strategy, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
CALLERS = 64
limit = RateLimitItemPerMinute(100)


def limiter(api, store):
    if strategy == "moving":
        return api.MovingWindowRateLimiter(store)
    return api.SlidingWindowCounterRateLimiter(store)


def key():
    return f"user:{random.randrange(100_000):07}"


def with_threads():
    rate_limiter = limiter(strategies, storage.RedisStorage(f"redis://127.0.0.1:{port}"))

    def caller(count):
        for _ in range(count):
            rate_limiter.hit(limit, key())

    def run_callers(count):
        threads = [threading.Thread(target=caller, args=(count // CALLERS,)) for _ in range(CALLERS)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start

    run_callers(10 * CALLERS)  # opens all connections before the clock starts
    return run_callers(decisions)


async def with_asyncio():
    store = aio.storage.RedisStorage(f"async+redis://127.0.0.1:{port}", implementation="redispy")
    rate_limiter = limiter(aio.strategies, store)

    async def caller(count):
        for _ in range(count):
            await rate_limiter.hit(limit, key())

    async def run_callers(count):
        start = time.perf_counter()
        await asyncio.gather(*(caller(count // CALLERS) for _ in range(CALLERS)))
        return time.perf_counter() - start

    await run_callers(10 * CALLERS)
    return await run_callers(decisions)


seconds = with_threads() if mode == "threads" else asyncio.run(with_asyncio())
python = ".".join(map(str, sys.version_info[:3]))
made = decisions // CALLERS * CALLERS
print(made / seconds, f"limits {version('limits')}, redis-py {version('redis')}, Python {python}")
