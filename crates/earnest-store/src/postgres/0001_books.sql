-- The books, as SQLite keeps them (sqlite/0001_books.sql says what each table is for), and the head
-- row, which every batch locks first. Texts that sort are bytes, so that no locale orders them:
-- what `codec::Packed` makes of them, led by a byte that puts texts before ids.

CREATE TABLE earnest_meta (
    name text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE earnest_words (
    no bigint PRIMARY KEY,
    text text NOT NULL UNIQUE
);

-- One row: the end of the log, and how many words have numbers. `at` in microseconds since 1970.
CREATE TABLE earnest_head (
    one smallint PRIMARY KEY CHECK (one = 1),
    seq bigint NOT NULL,
    at bigint NOT NULL,
    hash bytea NOT NULL,
    words bigint NOT NULL
);

CREATE TABLE earnest_accounts (
    no bigint PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    debits_pending bigint NOT NULL CHECK (debits_pending >= 0),
    debits_posted bigint NOT NULL CHECK (debits_posted >= 0),
    credits_pending bigint NOT NULL CHECK (credits_pending >= 0),
    credits_posted bigint NOT NULL CHECK (credits_posted >= 0),
    last_seq bigint NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE earnest_holds (
    id bytea PRIMARY KEY,
    state smallint NOT NULL,
    opened bigint NOT NULL,
    resolved bigint
) WITH (fillfactor = 80);

CREATE TABLE earnest_rows (
    kind bigint NOT NULL,
    id bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (kind, id)
) WITH (fillfactor = 80);

CREATE TABLE earnest_lists (
    list bigint NOT NULL,
    kind bigint NOT NULL,
    scope bytea NOT NULL,
    at bytea NOT NULL,
    id bytea NOT NULL,
    PRIMARY KEY (list, kind, scope, at, id)
);

CREATE TABLE earnest_keys (
    address bytea PRIMARY KEY,
    seq bigint NOT NULL
);

CREATE TABLE earnest_log (
    seq bigint PRIMARY KEY,
    at bigint NOT NULL,
    hash bytea NOT NULL,
    body bytea NOT NULL
);

INSERT INTO earnest_head (one, seq, at, hash, words) VALUES (1, 0, 0, decode(repeat('00', 32), 'hex'), 0);
