-- Sums a hundred neighbouring accounts: more work per round trip.
\set aid random(1, 100000 * :scale - 100)
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 99;
