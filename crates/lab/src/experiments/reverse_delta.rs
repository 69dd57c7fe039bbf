//! A chain of deltas restored oldest first, newest first, and as one overlay.
//!
//! The published comparison scaled down keeps the ratio that matters, that of
//! transactions to pages: the third to fifth delta each touch nearly every page,
//! so that unpacking oldest first writes the database about four times. The
//! orders are unpacked by one program from one repository; the overlay is what
//! the backup program does, and other tools join where they are installed.

mod chain;
mod table;

use anyhow::Result;
use clap::{Args, ValueEnum};

use self::chain::Chain;
use super::shared::Preset;
use super::stage::{Hypothesis, Sketch, Stage};
use super::strata;
use super::tools::{ToolArguments, Tools};
use crate::contenders::contender::Contender;
use crate::contenders::pgstrata::Storage;
use crate::contenders::walg::WalG;
use crate::experiments::shared::Shared;
use crate::format::Unit;
use crate::measure::programs;
use crate::measure::result::{Arm, Claim, Metric};
use crate::measure::stat::verdict::Better;
use crate::report::output::print;
use pgstrata_testbed::s3::S3Server;

/// Where the repository is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Place {
    /// A directory
    Directory,
    /// An S3 server that the lab runs on this machine
    S3,
}

/// Arguments of `seed reverse-delta`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// how large: paper is pgbench scale 1000 (15 GB), small 20, tiny 2; large as paper, with an empty page cache before each restore
    #[arg(long, value_enum, default_value = "small")]
    preset: Preset,
    /// pgbench scale; transactions follow it
    #[arg(long, short = 's')]
    scale: Option<u32>,
    /// restores of each kind
    #[arg(long)]
    blocks: Option<usize>,
    /// where the repository is
    #[arg(long, value_enum, default_value = "directory")]
    storage: Place,
    #[command(flatten)]
    tools: ToolArguments,
    #[command(flatten)]
    shared: Shared,
}

/// A load between two backups.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Load {
    clients: u32,
    /// Transactions of each client.
    transactions: u32,
    builtin: &'static str,
}

/// The loads before deltas 2 to 5, scaled: published for scale 1000.
fn loads(scale: u32) -> Vec<Vec<Load>> {
    let load = |clients, all: u32, builtin| Load {
        clients,
        transactions: (all * scale / clients).max(1),
        builtin,
    };
    vec![
        vec![load(10, 100, "tpcb-like"), load(10, 300, "tpcb-like")],
        vec![load(16, 4800, "tpcb-like")],
        vec![load(16, 4800, "tpcb-like")],
        vec![load(16, 4800, "simple-update")],
    ]
}

/// `seed reverse-delta`.
///
/// # Errors
/// Fails when a server or a tool does, or a restored cluster is not what it should be.
pub fn run(arguments: &Arguments, words: &[String]) -> Result<u8> {
    let tools = arguments.tools.find(arguments.preset)?;
    let pgbench = programs::find_pgbench(arguments.shared.pgbench.as_deref())?;
    let (scale, blocks) = match arguments.preset {
        Preset::Tiny => (2, 7),
        // With three comparisons, fewer than seven blocks can prove nothing.
        Preset::Small => (20, 8),
        Preset::Paper | Preset::Large => (1000, 8),
    };
    let scale = arguments.scale.unwrap_or(scale);
    let blocks = arguments.blocks.unwrap_or(blocks);
    if arguments.shared.dry_run {
        // Beside an S3 server of ours nobody else takes part.
        let repository = match arguments.storage {
            Place::Directory => (
                "file://WORK/repository-pgstrata-lsn",
                strata::is_archived(&Storage::Directory, tools.others),
            ),
            Place::S3 => (
                "s3://BUCKET/repository-pgstrata-lsn --s3-endpoint http://127.0.0.1:PORT",
                false,
            ),
        };
        print(&chain::describe((scale, blocks), &pgbench, repository))?;
        return Ok(0);
    }
    let storage = match arguments.storage {
        Place::Directory => Storage::Directory,
        Place::S3 => Storage::S3(S3Server::start()?),
    };
    let contenders = everybody(&tools, &storage);
    let arms = arms(&contenders);
    let sketch = Sketch {
        kind: "reverse-delta",
        title: "A chain of deltas, restored in three orders".to_owned(),
        workload: format!(
            "base, pgbench scale {scale}, five deltas; repository {}",
            match arguments.storage {
                Place::Directory => "in a directory",
                Place::S3 => "on S3",
            }
        ),
        arms,
        metrics: vec![
            Metric::new("time", "restore time", Unit::Seconds, Better::Lower),
            Metric::new("written", "bytes written", Unit::Bytes, Better::Lower),
        ],
        blocks,
        state: "restore",
        hypothesis: Some(Hypothesis::new(
            "writing every page once makes restoring a chain faster than layer by layer",
            // Newest first, and the first contender, which is ours.
            [1, 2].map(|arm| Claim::at_most("time", arm, 1.0)),
        )),
    };
    let mut stage = Stage::open(sketch, &arguments.shared, words)?;
    // Beside an S3 server of ours nobody else takes part anyhow.
    if matches!(arguments.storage, Place::Directory) {
        stage.experiment.warnings.extend(tools.left_out());
    }
    let outcome = (|| {
        let mut chain = Chain::make(&tools, (scale, &pgbench), &contenders, &storage)?;
        let cold = arguments.preset == Preset::Large;
        chain.measure(&mut stage, cold, !arguments.shared.no_samplers)
    })();
    stage.close(outcome, table::describe)
}

/// Ours and the others, WAL-G with both of its orders: the experiment is about them.
fn everybody<'a>(tools: &Tools, storage: &'a Storage) -> Vec<Box<dyn Contender + 'a>> {
    let mut all = strata::contenders(&["lsn".to_owned()], storage, tools.others);
    if let Some(at) = all.iter().position(|it| it.tool() == WalG::TOOL) {
        let orders = WalG::orders().into_iter();
        let boxed = orders.map(|order| -> Box<dyn Contender> { Box::new(order) });
        all.splice(at..=at, boxed);
    }
    all
}

/// Both orders by layers, then the programs.
fn arms(contenders: &[Box<dyn Contender + '_>]) -> Vec<Arm> {
    let arm = |name: &str, description: &str| Arm {
        name: name.to_owned(),
        description: description.to_owned(),
        environment: None,
    };
    let mut arms = vec![
        arm(
            "oldest first",
            "layer by layer, base first; every page as often as it was backed up",
        ),
        arm(
            "newest first",
            "layer by layer, newest first, skipping pages already there",
        ),
    ];
    for contender in contenders {
        let what = if contender.tool() == "pgstrata" {
            "one overlay of all layers: every page fetched and written once".to_owned()
        } else {
            contender.words()
        };
        let name = contender.name();
        arms.push(arm(name.strip_suffix(" lsn").unwrap_or(&name), &what));
    }
    arms
}

#[cfg(test)]
mod tests {
    use super::loads;

    #[test]
    fn transactions_keep_their_ratio_to_pages() {
        for (scale, expected) in [(1000, [400_000, 4_800_000]), (20, [8_000, 96_000])] {
            let all: Vec<u32> = loads(scale)
                .iter()
                .map(|step| step.iter().map(|l| l.clients * l.transactions).sum())
                .collect();
            assert_eq!(all, [expected[0], expected[1], expected[1], expected[1]]);
        }
    }
}
