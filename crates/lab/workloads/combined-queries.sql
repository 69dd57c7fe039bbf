-- Several results kept at once by \aset, one round trip. Needs pgbench 13.
\set aid random(1, 100000 * :scale)
\set bid random(1, 1 * :scale)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid \; SELECT bbalance FROM pgbench_branches WHERE bid = :bid \aset
SELECT :abalance + :bbalance;
