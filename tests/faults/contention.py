from tests.faults.forked import Try, family

TRIES: dict[str, Try] = {}
FAMILIES = {name: family(name) for name in TRIES}
