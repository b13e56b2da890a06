-- The books. Texts that recur (kinds, lists, families, names of units) are numbers from `words`,
-- ids of the usual form are 19 bytes, and everything that is only read by key has no other index.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE words (
    no INTEGER PRIMARY KEY,
    text TEXT NOT NULL UNIQUE
) STRICT;

-- The fold of the log: four totals, and where the account's history ends.
CREATE TABLE accounts (
    no INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    debits_pending INTEGER NOT NULL CHECK (debits_pending >= 0),
    debits_posted INTEGER NOT NULL CHECK (debits_posted >= 0),
    credits_pending INTEGER NOT NULL CHECK (credits_pending >= 0),
    credits_posted INTEGER NOT NULL CHECK (credits_posted >= 0),
    last_seq INTEGER NOT NULL
) STRICT;

-- Every chain's id, once and for ever; its legs stand in the entry that opened it.
CREATE TABLE holds (
    id BLOB PRIMARY KEY,
    state INTEGER NOT NULL,
    opened INTEGER NOT NULL,
    resolved INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE rows (
    kind INTEGER NOT NULL,
    id ANY NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE lists (
    list INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    scope ANY NOT NULL,
    at ANY NOT NULL,
    id ANY NOT NULL,
    PRIMARY KEY (list, kind, scope, at, id)
) STRICT, WITHOUT ROWID;

-- Where an idempotency key was bound last; what to stands in that entry.
CREATE TABLE keys (
    address BLOB PRIMARY KEY,
    seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One entry a unit. `at` in microseconds since 1970.
CREATE TABLE log (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    hash BLOB NOT NULL,
    body BLOB NOT NULL
) STRICT;
