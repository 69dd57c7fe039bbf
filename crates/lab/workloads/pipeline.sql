-- Five lookups in one round trip by pipeline mode. Needs pgbench 14 and
-- the extended or prepared protocol.
\set a1 random(1, 100000 * :scale)
\set a2 random(1, 100000 * :scale)
\set a3 random(1, 100000 * :scale)
\startpipeline
SELECT abalance FROM pgbench_accounts WHERE aid = :a1;
SELECT abalance FROM pgbench_accounts WHERE aid = :a2;
SELECT abalance FROM pgbench_accounts WHERE aid = :a3;
\endpipeline
