"""Tasks that take turns."""

from tilelink.emulator import Scheduler


def order_of(seed: int, policy="random", tasks: int = 5, turns: int = 4) -> tuple[list[int], int]:
    """In what order tasks have their turns under a seed, and the hash of that."""
    scheduler = Scheduler(seed, policy)
    order: list[int] = []

    def body(number: int) -> None:
        for _ in range(turns):
            order.append(number)
            scheduler.switch()

    for number in range(tasks):
        scheduler.spawn(lambda number=number: body(number))
    scheduler.run()
    return order, scheduler.schedule_hash
