-- The SQL surface: shapes, rights, errors, and answers that are the same
-- everywhere.
CREATE EXTENSION pgstrata;
SELECT pgstrata.version();
SELECT p.oid::regprocedure AS function, pg_get_function_result(p.oid) AS result,
       has_function_privilege('public', p.oid, 'execute') AS for_all
  FROM pg_proc p WHERE pronamespace = 'pgstrata'::regnamespace ORDER BY p.proname;

-- tracking, from an empty map
SELECT tracking, reason, history_reason, overflow, flush_failures FROM pgstrata.state();

-- tokens
SELECT pgstrata.bump() AS token \gset
SELECT :'token' ~ '^[0-9]+:[0-9a-f]{16}$' AS well_formed;
SELECT * FROM pgstrata.token_status(:'token');
SELECT known, reason LIKE 'the token is not of this history, which began at % because there was no page map' AS explained
  FROM pgstrata.token_status('1:0000000000000000');
SELECT * FROM pgstrata.token_status('rubbish');
SELECT * FROM pgstrata.token_status(:'token' || ' ');
SELECT * FROM pgstrata.token_status('');
\set VERBOSITY sqlstate
SELECT * FROM pgstrata.changes('1:rubbish');
SELECT * FROM pgstrata.change_stat('rubbish');
SELECT count(*) FROM pgstrata.changes(NULL);
\set VERBOSITY default
SELECT * FROM pgstrata.changes('1:rubbish');
SELECT count(*) FROM pgstrata.changes(NULL);
SELECT * FROM pgstrata.change_stat(NULL);
SELECT * FROM pgstrata.token_status(NULL);

-- one changed page of a table is one bit
CREATE TABLE t (k int, filler text) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 70) g;
VACUUM (FREEZE) t;
CHECKPOINT;
SELECT pgstrata.bump() AS token \gset
SELECT pg_relation_filepath('t') AS path \gset
SELECT count(*) FROM pgstrata.changes(:'token') WHERE path = :'path';
DELETE FROM t WHERE k = 30;
CHECKPOINT;
SELECT fork, segment, whole, blocks FROM pgstrata.changes(:'token') WHERE path = :'path' ORDER BY fork;

-- a new relation is whole, all its forks are of their own
SELECT pgstrata.bump() AS token \gset
CREATE TABLE new (k int);
INSERT INTO new VALUES (1);
CHECKPOINT;
SELECT fork, segment, whole, blocks FROM pgstrata.changes(:'token')
 WHERE path = pg_relation_filepath('new');

-- truncation marks what it cut off
SELECT pgstrata.bump() AS token \gset
DELETE FROM t WHERE k > 35;
VACUUM (TRUNCATE) t;
CHECKPOINT;
SELECT fork, segment, whole, blocks FROM pgstrata.changes(:'token')
 WHERE path = :'path' AND fork = 'main';

-- streamed, and the same as in FROM
SELECT count(*) = (SELECT count(*) FROM pgstrata.changes(:'token')) AS same
  FROM (SELECT pgstrata.changes(:'token') AS c OFFSET 0) s;
SELECT files > 0 AS files, pages >= files AS pages, bytes = pages * 8192 AS bytes
  FROM pgstrata.change_stat(:'token');

-- older tokens are answered, too, and with more
SELECT pgstrata.bump() AS newer \gset
SELECT (SELECT count(*) FROM pgstrata.changes(:'token') WHERE path = :'path') AS older,
       (SELECT count(*) FROM pgstrata.changes(:'newer') WHERE path = :'path') AS newer;

-- a copied database is a directory
SELECT pgstrata.bump() AS token \gset
CREATE DATABASE copied STRATEGY file_copy;
SELECT path = 'base/' || (SELECT oid FROM pg_database WHERE datname = 'copied') AS path,
       fork, segment, whole, blocks
  FROM pgstrata.changes(:'token') WHERE fork IS NULL;
DROP DATABASE copied;

-- rights: not for everybody
CREATE ROLE regress_nobody;
CREATE ROLE regress_backup;
GRANT USAGE ON SCHEMA pgstrata TO regress_nobody, regress_backup;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgstrata TO regress_backup;
SET ROLE regress_nobody;
SELECT pgstrata.version();
SELECT pgstrata.bump();
SELECT * FROM pgstrata.state();
SELECT * FROM pgstrata.changes('1:0');
SELECT * FROM pgstrata.change_stat('1:0');
SELECT * FROM pgstrata.token_status('1:0');
SET ROLE regress_backup;
SELECT count(pgstrata.bump());
SELECT tracking FROM pgstrata.state();
SELECT known FROM pgstrata.token_status(:'token');
SELECT count(*) > 0 AS some FROM pgstrata.changes(:'token');
RESET ROLE;
DROP OWNED BY regress_nobody, regress_backup;
DROP ROLE regress_nobody, regress_backup;

-- the setting is the postmaster's
SHOW pgstrata.map_size;
SET pgstrata.map_size = 1;
SET pgstrata.other = 1;
DROP TABLE t, new;
