//! Measures what the size of a frame costs: compression, decompression, and pages
//! decoded in vain when a chain of scattered increments is restored.
//!
//! `frame_size NAME=FILE[,FILE...] ...` reads relation segments of a cluster that
//! is shut down, and prints tables for `docs/adr/0001-frame-size.md`. Times are
//! processor time of this thread (from `/proc`), so other work on the machine
//! disturbs them little.

use std::error::Error;
use std::fs;
use std::io::{Write, stdout};

use pgstrata_layer::digest;
use pgstrata_layer::frame::{Codec, FrameDecoder, FrameEncoder};

type Outcome<T> = Result<T, Box<dyn Error>>;

const BLOCK: usize = 8192;
const SIZES: [usize; 6] = [4, 8, 16, 32, 64, 128];
/// Of each file set, at most this is used.
const SAMPLE_PAGES: usize = 192 * 128;
const ROUNDS: usize = 3;
/// Of every 5 pages one changes between two layers.
const CHANGED_ONE_IN: u64 = 5;

fn main() -> Outcome<()> {
    let mut out = stdout().lock();
    for argument in std::env::args().skip(1) {
        let (name, files) = argument
            .split_once('=')
            .ok_or("expected NAME=FILE[,FILE...]")?;
        let pages = read_pages(files)?;
        writeln!(out, "\n{name}: {} pages\n", pages.len())?;
        for codec in [Codec::Zstd(1), Codec::Lz4] {
            measure_codec(&mut out, codec, &pages)?;
        }
    }
    Ok(())
}

/// Pages that are not all zeros.
fn read_pages(files: &str) -> Outcome<Vec<Vec<u8>>> {
    let mut pages = Vec::new();
    for file in files.split(',') {
        let bytes = fs::read(file)?;
        let (whole, _) = bytes.as_chunks::<BLOCK>();
        pages.extend(
            whole
                .iter()
                .filter(|page| !digest::is_zeros(*page))
                .map(|page| page.to_vec()),
        );
    }
    pages.truncate(SAMPLE_PAGES);
    Ok(pages)
}

fn measure_codec(out: &mut impl Write, codec: Codec, pages: &[Vec<u8>]) -> Outcome<()> {
    writeln!(
        out,
        "| {codec}: pages per frame | compress MB/s | decompress MB/s | ratio | ratio of 20 % scattered | decoded / restored, 1 increment | 5 increments | restore of 5, CPU s per GiB |"
    )?;
    writeln!(
        out,
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )?;
    for size in SIZES {
        let all: Vec<usize> = (0..pages.len()).collect();
        let dense = measure(codec, size, pages, &all)?;
        let scattered = measure(codec, size, pages, &changed(pages.len(), 1))?;
        let decoded = |increments| decoded_per_restored(pages.len(), size, increments);
        let seconds = decoded(5) * 1024.0 / (dense.decompress * 1e6 / f64::from(1 << 20));
        writeln!(
            out,
            "| {size} ({} KiB) | {:.0} | {:.0} | {:.3} | {:.3} | {:.2} | {:.2} | {seconds:.2} |",
            size * 8,
            dense.compress,
            dense.decompress,
            dense.ratio,
            scattered.ratio,
            decoded(1),
            decoded(5),
        )?;
    }
    writeln!(out)?;
    Ok(())
}

struct Figures {
    compress: f64,
    decompress: f64,
    ratio: f64,
}

fn measure(codec: Codec, size: usize, pages: &[Vec<u8>], chosen: &[usize]) -> Outcome<Figures> {
    let raws: Vec<Vec<u8>> = chosen
        .chunks(size)
        .map(|frame| {
            frame
                .iter()
                .flat_map(|&page| pages[page].iter())
                .copied()
                .collect()
        })
        .collect();
    let raw_bytes: usize = raws.iter().map(Vec::len).sum();
    let mut encoder = FrameEncoder::new(codec)?;
    let mut decoder = FrameDecoder::new()?;
    let (mut best_encode, mut best_decode) = (f64::MAX, f64::MAX);
    let mut stored_bytes = 0;
    let mut raw = Vec::new();
    for _ in 0..ROUNDS {
        let mut packed = Vec::with_capacity(raw_bytes);
        let mut frames = Vec::new();
        let start = cpu_seconds()?;
        for raw in &raws {
            let at = packed.len();
            encoder.encode(raw, &mut packed)?;
            frames.push(at..packed.len());
        }
        best_encode = best_encode.min(cpu_seconds()? - start);
        stored_bytes = packed.len();
        let start = cpu_seconds()?;
        for frame in frames {
            decoder.decode(&packed[frame], None, &mut raw)?;
        }
        best_decode = best_decode.min(cpu_seconds()? - start);
    }
    Ok(Figures {
        compress: float(raw_bytes) / best_encode / 1e6,
        decompress: float(raw_bytes) / best_decode / 1e6,
        ratio: float(raw_bytes) / float(stored_bytes),
    })
}

/// Pages that the `nth` increment stores: scattered at random, the same in every run.
fn changed(page_count: usize, nth: u64) -> Vec<usize> {
    let mut state = nth.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 20
    };
    (0..page_count)
        .filter(|_| random().is_multiple_of(CHANGED_ONE_IN))
        .collect()
}

/// Pages that must be decoded to restore a chain, over pages restored.
fn decoded_per_restored(page_count: usize, size: usize, increments: u64) -> f64 {
    let mut owner = vec![0; page_count];
    for nth in 1..=increments {
        for page in changed(page_count, nth) {
            owner[page] = nth;
        }
    }
    let decoded: usize = (0..=increments)
        .map(|nth| {
            let stored = if nth == 0 {
                (0..page_count).collect()
            } else {
                changed(page_count, nth)
            };
            let frames = stored.chunks(size);
            let needed = frames.filter(|frame| frame.iter().any(|&page| owner[page] == nth));
            needed.map(<[usize]>::len).sum::<usize>()
        })
        .sum();
    float(decoded) / float(page_count)
}

fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// Processor time of this thread.
fn cpu_seconds() -> Outcome<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = text
        .split(' ')
        .next()
        .ok_or("no time in schedstat")?
        .parse()?;
    Ok(nanoseconds / 1e9)
}
