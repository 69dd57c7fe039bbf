//! The configuration is rewritten, as administrators and tools do while backups run.

use anyhow::Result;

use super::super::chance::Chance;
use super::super::log::Step;
use super::super::versions;
use super::super::world::World;

/// Settings that change nothing of what is tried, with values that all servers take.
const SETTINGS: [(&str, [&str; 2]); 4] = [
    ("work_mem", ["'1MB'", "'8MB'"]),
    ("checkpoint_timeout", ["'30s'", "'5min'"]),
    ("application_name", ["'chaos'", "'it''s chaos'"]),
    ("bgwriter_delay", ["'10ms'", "'500ms'"]),
];

/// How often in one go: backups copy files that change again and again.
const MOST: u64 = 20;

/// Rewrites `postgresql.auto.conf` a few times, and `pg_hba.conf`.
pub(super) fn change(world: &mut World, chance: &mut Chance, step: &mut Step) -> Result<()> {
    let count = chance.between(1, MOST);
    for _ in 0..count {
        if chance.percent(30) {
            let number = world.next_serial();
            versions::write(world, number, chance.between(0, 2000))?;
        }
        let Some((name, values)) = chance.one(&SETTINGS) else {
            continue;
        };
        let value = chance.one(values).unwrap_or(&"DEFAULT");
        let statement = match chance.percent(20) {
            true => format!("ALTER SYSTEM RESET {name}"),
            false => format!("ALTER SYSTEM SET {name} = {value}"),
        };
        world.sql(&statement)?;
    }
    world.sql("SELECT pg_reload_conf()")?;
    step.say(format!("{count} settings"));
    Ok(())
}
