//! What follows the options in `--help`: commands to copy.

pub(crate) const FIRST_STEPS: &str = "\
First steps:
  export PGSTRATA_REPO=file:///var/lib/pgstrata PGSTRATA_CLUSTER=main
  pgstrata init   --pgdata /var/lib/postgresql/15/main
  pgstrata check  --pgdata /var/lib/postgresql/15/main
  pgstrata backup --pgdata /var/lib/postgresql/15/main
  pgstrata info
  pgstrata restore latest --target-dir /var/lib/postgresql/15/restored

Continuous archiving (postgresql.conf):
  archive_mode = on
  archive_command = 'pgstrata --repo file:///var/lib/pgstrata --cluster main archive-push %p'

Exit codes: 0 done; 1 archive-get: the archive ends before it; 2 usage; 3 done with
warnings; 10 and above: one code for each kind of error (docs/OPERATIONS.md).";

pub(crate) const INIT: &str = "\
Examples:
  pgstrata --repo file:///var/lib/pgstrata --cluster main init -D /var/lib/postgresql/15/main
  pgstrata --repo s3://backups/postgres --cluster main --s3-endpoint https://s3.example.com \\
           --s3-path-style --credentials /etc/pgstrata/credentials.toml init -D DIR
  pgstrata --cluster main init -D DIR --retain 30d      nobody can delete a layer for 30 days; needs Object Lock";

pub(crate) const KEY: &str = "\
Examples:
  pgstrata key generate ~/dba1.identity            on the host of each who shall restore; prints age1...
  pgstrata --cluster main init -D DIR --encrypt --recipient age1... --recipient age1... --writer age1...
  pgstrata --identity ~/dba1.identity key check    who opens what
  pgstrata --identity ~/dba1.identity key add --recipient age1...
  pgstrata --identity ~/dba1.identity key remove age1...";

pub(crate) const CHECK: &str = "\
Examples:
  pgstrata check -D /var/lib/postgresql/15/main
  pgstrata check --wal stream              for servers that do not archive to this repository
  pgstrata check --max-age 26h             also fail when the newest backup is older; once a day";

pub(crate) const BACKUP: &str = "\
Examples:
  pgstrata backup -D /var/lib/postgresql/15/main      incremental when it can be, else full
  pgstrata backup --type full --jobs 8                a new chain, for example every week
  pgstrata backup --dry-run                           what it would do, and why
  pgstrata backup --max-rate 100M --checkpoint spread for a server that must not notice";

pub(crate) const ARCHIVE_PUSH: &str = "\
In postgresql.conf:
  archive_mode = on
  archive_command = 'pgstrata --repo file:///var/lib/pgstrata --cluster main archive-push %p'";

pub(crate) const ARCHIVE_GET: &str = "\
In postgresql.conf, where \"restore\" writes it:
  restore_command = 'exec pgstrata --repo file:///var/lib/pgstrata --cluster main archive-get %f %p'
For a standby that also streams: ... archive-get --on-hole=end %f %p";

pub(crate) const RESTORE: &str = "\
Examples:
  pgstrata restore --target-dir DIR                                     to the end of the archive
  pgstrata restore --target-dir DIR --target-type time --target '2026-11-21 09:33:05+00' --dry-run
  pgstrata restore --target-dir DIR --target-type lsn --target 0/5A3C1D8 --target-action promote
  pgstrata restore 20261121-093305F --target-dir DIR --target-type immediate   to the end of that backup
  pgstrata restore --target-dir DIR --target-type standby               as a standby
  pgstrata restore --target-dir DIR --tablespace-map /fast=/restore/fast";

pub(crate) const INFO: &str = "\
Examples:
  pgstrata info                            every backup in one line
  pgstrata info 20261121-093305F           everything about one backup
  pgstrata info --costs                    what is stored, and what each rule costs
  pgstrata info --max-age 26h --max-verify-age 8d --output json      for monitoring
  pgstrata --output json info | jq '.layers[-1].finished_at'";

pub(crate) const VERIFY: &str = "\
Examples:
  pgstrata verify                          every layer
  pgstrata verify 20261121-093305F         one layer and those it stands on
  pgstrata verify --deep --output json     decode every page too; for programs";

pub(crate) const COPY: &str = "\
Examples:
  pgstrata copy --to file:///mnt/other --dry-run       what would be copied
  pgstrata copy --to s3://other/postgres --to-credentials /etc/pgstrata/other.toml
  pgstrata --repo near copy --to far                   repositories of the configuration file
  pgstrata --repo near copy --to far --follow          keep a mirror
  pgstrata --repo near --identity FILE copy --to far --recipient age1... --writer age1...     a sealed cluster, for others";

pub(crate) const MERGE: &str = "\
Examples:
  pgstrata merge --dry-run                 which layers, and which of them can go
  pgstrata merge LABEL                     LABEL and all it stands on as one more, full layer
  pgstrata merge LABEL --remove-inputs     the same, and the merged layers go
  pgstrata merge LABEL --from OLDER        the layers from OLDER to LABEL as one increment";

pub(crate) const EXPIRE: &str = "\
Examples:
  pgstrata expire --keep-full 2 --dry-run            what would go
  pgstrata expire --keep-full 2                      remove it
  pgstrata expire --keep-within 14d --max-chain 30   incremental for ever
  pgstrata expire --keep-within 7d --keep-daily 14 --keep-weekly 8 --keep-monthly 12 --keep-wal 7d";

pub(crate) const RESCUE: &str = "\
Examples:
  pgstrata rescue --since 2026-11-21T09:33:05Z --dry-run      what was deleted or overwritten since
  pgstrata rescue --since 2026-11-21T09:33:05Z                bring it back
  pgstrata restore --target-dir DIR --repository-as-of 2026-11-21T09:33:05Z   without changing anything";

pub(crate) const PIN: &str = "\
Examples:
  pgstrata pin latest --note 'before the move to 18'
  pgstrata pin 20261121-093305F --until 2027-01-31";

pub(crate) const UNPIN: &str = "\
Examples:
  pgstrata unpin 20261121-093305F";

pub(crate) const ANNOTATE: &str = "\
Examples:
  pgstrata annotate 20261121-093305F ticket=DB-1042
  pgstrata annotate 20261121-093305F ticket=         take it away";

pub(crate) const TRACKER: &str = "\
Examples:
  pgstrata tracker install-check -D DIR    what is missing, step by step
  pgstrata tracker status -D DIR           since when changes are known, and the use of the map";

pub(crate) const LAB: &str = "\
Examples:
  pgstrata lab doctor                      what on this machine disturbs measurements
  pgstrata lab seed block-io --dsn DSN     how fast a server reads and writes, by SQL alone
  pgstrata lab ab --arm new:guc.jit=off    two servers compared in interleaved blocks
  pgstrata lab report DIR --html page.html";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  pgstrata completions bash > /etc/bash_completion.d/pgstrata
  pgstrata completions zsh  > /usr/local/share/zsh/site-functions/_pgstrata
  pgstrata completions fish > ~/.config/fish/completions/pgstrata.fish";

pub(crate) const MAN: &str = "\
Examples:
  pgstrata man > /usr/local/share/man/man1/pgstrata.1
  pgstrata man backup | man -l -";
