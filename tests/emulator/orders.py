"""Tasks that take turns."""

from tilelink.emulator import Scheduler


def order_of(seed: int, policy="random") -> tuple[list[int], int]:
    """In what order five tasks have four turns each under a seed, and the hash of that."""
    scheduler = Scheduler(seed, policy)
    order: list[int] = []

    def body(number: int) -> None:
        for _ in range(4):
            order.append(number)
            scheduler.switch()

    for number in range(5):
        scheduler.spawn(lambda number=number: body(number))
    scheduler.run()
    return order, scheduler.schedule_hash
