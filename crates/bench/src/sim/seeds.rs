//! The four initial findings of this project, repeated on a simulated machine.
//!
//! 1. Berkeley DB's lock table, with the locker latch taken exclusively and shared (a change of
//!    2026).
//! 2. Its buffer headers, packed and with the pins on separate cache lines (measured 2026).
//! 3. PostgreSQL's LWLock with its state under a spinlock and with an atomic state (mail of 2013).
//! 4. ShflLock against Linux's mutex and CST in file creation (SOSP 2019).

use latchwork_classic::exclusive;
use latchwork_latch::ShflMutex;
use latchwork_machine::Native;
use serde::Serialize;

use super::run::{RunError, run_shipped};

/// One comparison of a finding: a quotient of two runs.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Number of the finding, 1 to 4.
    pub seed: usize,
    /// The finding.
    pub text: &'static str,
    /// The published figure, quoted.
    pub published: &'static str,
    /// The least quotient that agrees.
    pub least: f64,
    /// The greatest quotient that agrees.
    pub most: f64,
    over: Half,
    under: Half,
}

/// Half of a quotient.
#[derive(Clone, Copy, Debug)]
enum Half {
    /// Operations per second of a run.
    Ops {
        machine: &'static str,
        workload: &'static str,
        subject: &'static str,
        threads: usize,
        us: f64,
    },
    /// Bytes of a published lock used by the threads of one socket.
    Bytes(&'static str),
    /// Bytes of our mutex.
    Ours,
}

const fn half(
    machine: &'static str,
    workload: &'static str,
    subject: &'static str,
    threads: usize,
    us: f64,
) -> Half {
    Half::Ops { machine, workload, subject, threads, us }
}

const fn lockers(subject: &'static str, threads: usize) -> Half {
    half("xeon-24t", "lock-bench", subject, threads, 1000.0)
}

const fn lwlock(subject: &'static str, threads: usize) -> Half {
    half("e5-4620-64", "lwlock", subject, threads, 5000.0)
}

const fn create(subject: &'static str, threads: usize) -> Half {
    half("broadwell-ex-192", "create", subject, threads, 3000.0)
}

/// All claims.
pub const CLAIMS: &[Claim] = &[
    Claim {
        seed: 1,
        text: "shared locker latch over the exclusive one, 24 threads",
        published: "7.01 M / 2.60 M = 2.7",
        least: 2.0,
        most: 3.4,
        over: lockers("lw-latch", 24),
        under: lockers("stock-mutex", 24),
    },
    Claim {
        seed: 1,
        text: "the exclusive one at 24 threads over 8",
        published: "2.60 M / 3.03 M = 0.86: it falls",
        least: 0.5,
        most: 0.99,
        over: lockers("stock-mutex", 24),
        under: lockers("stock-mutex", 8),
    },
    Claim {
        seed: 1,
        text: "no latch over the shared one, 24 threads",
        published: "16.1 M / 7.01 M = 2.3",
        least: 1.5,
        most: 5.0,
        over: lockers("none", 24),
        under: lockers("lw-latch", 24),
    },
    Claim {
        seed: 2,
        text: "pins on lines of their own over packed headers, 12 threads",
        published: "within 0.6 %",
        least: 0.98,
        most: 1.02,
        over: half("xeon-24t", "header-isolated", "lw-latch", 12, 2000.0),
        under: half("xeon-24t", "header-packed", "lw-latch", 12, 2000.0),
    },
    Claim {
        seed: 3,
        text: "atomic LWLock over the spinlock-protected one, four sockets",
        published: "590 k / 147 k tps = 4.0",
        least: 3.0,
        most: 5.0,
        over: lwlock("lw-latch", 64),
        under: lwlock("lw-spinlock", 64),
    },
    Claim {
        seed: 3,
        text: "the same on one socket",
        published: "5 to 10 % more",
        least: 0.97,
        most: 1.3,
        over: lwlock("lw-latch", 16),
        under: lwlock("lw-spinlock", 16),
    },
    Claim {
        seed: 4,
        text: "Linux's mutex at 192 threads over 24: it collapses after one socket",
        published: "the slides' curve: about half",
        least: 0.2,
        most: 0.8,
        over: create("stock-mutex", 192),
        under: create("stock-mutex", 24),
    },
    Claim {
        seed: 4,
        text: "ShflLock at 192 threads over 24: it does not",
        published: "about 1",
        least: 0.9,
        most: 1.3,
        over: create("shfl-mutex", 192),
        under: create("shfl-mutex", 24),
    },
    Claim {
        seed: 4,
        text: "CST at 192 threads over 24: nor does it",
        published: "about 1",
        least: 0.9,
        most: 1.3,
        over: create("cst", 192),
        under: create("cst", 24),
    },
    Claim {
        seed: 4,
        text: "ShflLock over Linux's mutex, 24 threads",
        published: "1.15; here 1.02, for neither sleeps",
        least: 0.97,
        most: 1.5,
        over: create("shfl-mutex", 24),
        under: create("stock-mutex", 24),
    },
    Claim {
        seed: 4,
        text: "ShflLock over Linux's mutex, 192 threads",
        published: "1.62",
        least: 1.3,
        most: 2.2,
        over: create("shfl-mutex", 192),
        under: create("stock-mutex", 192),
    },
    Claim {
        seed: 4,
        text: "ShflLock over CST, 24 threads",
        published: "1.58; here CST's hand-over is all but the bound",
        least: 0.93,
        most: 1.9,
        over: create("shfl-mutex", 24),
        under: create("cst", 24),
    },
    Claim {
        seed: 4,
        text: "ShflLock over CST, 192 threads",
        published: "1.15",
        least: 0.93,
        most: 1.4,
        over: create("shfl-mutex", 192),
        under: create("cst", 192),
    },
    Claim {
        seed: 4,
        text: "CST over ShflLock at one thread",
        published: "below 1: more atomic operations",
        least: 0.5,
        most: 0.999,
        over: create("cst", 1),
        under: create("shfl-mutex", 1),
    },
    Claim {
        seed: 4,
        text: "memory of Linux's mutex over ShflLock's",
        published: "17.8 MB / 10.5 MB = 1.7 of all locks; 40 B / 12 B a lock",
        least: 1.5,
        most: 6.0,
        over: Half::Bytes("stock-mutex"),
        under: Half::Ours,
    },
    Claim {
        seed: 4,
        text: "memory of CST, used by one socket, over ShflLock's",
        published: "140 MB / 10.5 MB = 13",
        least: 9.0,
        most: 20.0,
        over: Half::Bytes("cst"),
        under: Half::Ours,
    },
];

/// A claim and the simulated result.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Finding {
    /// Number of the finding.
    pub seed: usize,
    /// The finding.
    pub claim: &'static str,
    /// The published figure.
    pub published: &'static str,
    /// The least quotient that agrees.
    pub least: f64,
    /// The greatest quotient that agrees.
    pub most: f64,
    /// The simulated quotient.
    pub simulated: f64,
    /// The dividend: operations per second, or bytes.
    pub over: f64,
    /// The divisor.
    pub under: f64,
    /// Whether it agrees.
    pub agrees: bool,
}

impl Claim {
    /// Runs both halves.
    ///
    /// # Errors
    ///
    /// If a run fails.
    pub fn judge(&self) -> Result<Finding, RunError> {
        let (over, under) = (self.over.value()?, self.under.value()?);
        let simulated = over / under;
        Ok(Finding {
            seed: self.seed,
            claim: self.text,
            published: self.published,
            least: self.least,
            most: self.most,
            simulated,
            over,
            under,
            agrees: (self.least..=self.most).contains(&simulated),
        })
    }
}

impl Half {
    fn value(&self) -> Result<f64, RunError> {
        match *self {
            Self::Ops { machine, workload, subject, threads, us } => {
                Ok(run_shipped(machine, workload, subject, threads, us * 1000.0)?.ops_per_s)
            }
            Self::Bytes(name) => {
                let lock = exclusive::<Native>(name, 1).expect("a lock that there is");
                // Some locks grow on first use.
                lock.lock(0);
                lock.unlock(0);
                Ok(lock.bytes(1).lock as f64)
            }
            Self::Ours => Ok(size_of::<ShflMutex>() as f64),
        }
    }
}
