"""Typical uses of the package: mypy and pyright check this file, and it is not run."""

import latchwork
from latchwork import Store, Transaction

db: Store = latchwork.open("/tmp/shop", mode="none", small=True)
hits = db["hits"]
prices = db.table("prices", keys="str", values="u64", mode=0.1)
pickles = db.table("pickles", values=latchwork.pickled(unsafe=True))


def count(tx: Transaction) -> int:
    tx[hits].add("all")
    tx.put("log", ("ann", 7), {"a": [1, None]})
    tx[prices]["pear"] = tx[prices].get("pear", 0) + 1
    return len(tx[hits])


number: int = db.write(count, time=1.0, label="count")


@db.transaction(level="read-committed")
def move(tx: Transaction, much: int, *, to: str) -> bool:
    return tx.remove(hits, to) and much > 0


moved: bool = move(3, to="ann")

for attempt in db.attempts(time=2.0):
    with attempt as tx:
        save = tx.savepoint()
        tx.roll_back_to(save)

with db.snapshot() as snapshot:
    for key, value in snapshot[hits].range("a", "b", reverse=True, limit=3):
        print(key, value)
    at: int = snapshot.at


async def task() -> int:
    async def work(tx: latchwork.AsyncTransaction) -> int:
        await tx.put(hits, "k", 1)
        return await tx.append(hits, b"x")

    return await db.aio.write(work, label="task")


pair = hits.pop_first()
if pair is not None:
    print(pair[0], pair[1])
try:
    hits.insert("k", 1)
except latchwork.Exists as why:
    print(why.table, why.retryable)
