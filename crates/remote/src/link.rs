//! A connection: statements that are sent in order, and their answers.
//!
//! Everything here is asynchronous, and is the same for programs that block and for tasks.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::Poll;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use futures_util::StreamExt;
use latchwork_store::{Error, ServerFailure};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error as PgError, Row, SimpleQueryMessage, Statement};

use crate::error::{of, server};
use crate::sql::{COLUMNS, CREATE, FORMAT, OURS, Sql};

/// A parameter of a statement.
pub(crate) type Param = Box<dyn ToSql + Send + Sync>;
/// The parameters of a statement. A clone shares them.
pub(crate) type Params = Arc<[Param]>;

/// Parameters of a statement.
macro_rules! params {
    ($($param:expr),*) => {
        ::std::sync::Arc::<[$crate::link::Param]>::from([$(Box::new($param) as _),*])
    };
}
pub(crate) use params;

/// A statement to send.
pub(crate) enum Message {
    /// Text without parameters.
    Text(Cow<'static, str>),
    /// A prepared statement.
    Bound(Sql, Params),
}

/// A statement without parameters.
pub(crate) const fn text(text: &'static str) -> Message {
    Message::Text(Cow::Borrowed(text))
}

/// An answer to a statement.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) rows: Arc<Vec<Row>>,
    pub(crate) changed: u64,
}

type Answering<'l> = Pin<Box<dyn Future<Output = Result<Answer, PgError>> + Send + 'l>>;

/// A connection that is set up.
pub(crate) struct Link {
    client: Client,
    statements: Vec<Statement>,
    /// How often a connection of this handle has waited for answers.
    trips: Arc<AtomicU64>,
}

/// Polls all futures in order, so that their statements are sent in order, before it waits for the
/// first.
async fn in_order<F: Future + ?Sized>(mut futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                *done = Some(output);
            }
        }
        Poll::Ready(())
    })
    .await;
    let mut outputs = Vec::with_capacity(done.len());
    for (future, done) in futures.iter_mut().zip(done) {
        outputs.push(match done {
            Some(output) => output,
            None => future.await,
        });
    }
    outputs
}

/// The first column of the first row of a statement without parameters.
async fn shown(client: &Client, text: &str) -> Result<String, PgError> {
    let messages = client.simple_query(text).await?;
    Ok(cells(&messages).next().and_then(|row| row.into_iter().next()).unwrap_or_default())
}

/// The rows of an answer in text.
fn cells(messages: &[SimpleQueryMessage]) -> impl Iterator<Item = Vec<String>> {
    messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|at| row.get(at).unwrap_or_default().to_owned()).collect())
        }
        _ => None,
    })
}

impl Link {
    /// Sets a connection up: the level, the tables, and the statements.
    pub(crate) async fn new(
        client: Client,
        trips: Arc<AtomicU64>,
        copying: bool,
    ) -> Result<Self, Error> {
        level(&client).await?;
        tables(&client, copying).await?;
        let prepare = |(sql, types): &(&'static str, &'static [_])| {
            let (client, sql, types) = (&client, *sql, *types);
            Box::pin(async move { client.prepare_typed(sql, types).await })
        };
        let statements = in_order(Sql::ALL.iter().map(prepare).collect()).await;
        let statements: Result<Vec<_>, _> = statements.into_iter().collect();
        let statements = statements.map_err(|why| of(&why))?;
        Ok(Self { client, statements, trips })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    fn answering<'l>(&'l self, send: &'l Message) -> Answering<'l> {
        Box::pin(self.answer(send))
    }

    /// Sends a statement when it is polled first, and waits for the answer.
    async fn answer(&self, send: &Message) -> Result<Answer, PgError> {
        let (sql, params) = match send {
            Message::Text(text) => {
                self.client.batch_execute(text).await?;
                return Ok(Answer::default());
            }
            Message::Bound(sql, params) => (*sql, params),
        };
        let params = params.iter().map(|param| &**param as &(dyn ToSql + Sync));
        let mut stream = pin!(self.client.query_raw(&self.statements[sql as usize], params).await?);
        let mut rows = Vec::new();
        while let Some(row) = stream.next().await {
            rows.push(row?);
        }
        let changed = stream.rows_affected().unwrap_or(0);
        Ok(Answer { rows: Arc::new(rows), changed })
    }

    /// Sends statements, and waits for all answers: one round trip.
    pub(crate) async fn exchange(&self, sends: &[Message]) -> Vec<Result<Answer, PgError>> {
        self.trips.fetch_add(1, Relaxed);
        match sends {
            [one] => vec![self.answer(one).await],
            all => in_order(all.iter().map(|send| self.answering(send)).collect()).await,
        }
    }
}

impl Link {
    /// Sends a statement, and calls `each` for the rows as they come: they need no memory at once.
    pub(crate) async fn stream(
        &self,
        (sql, params): (Sql, Params),
        mut each: impl FnMut(&Row) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let params = params.iter().map(|param| &**param as &(dyn ToSql + Sync));
        let rows = self.client.query_raw(&self.statements[sql as usize], params).await;
        let mut rows = pin!(rows.map_err(|why| of(&why))?);
        while let Some(row) = rows.next().await {
            each(&row.map_err(|why| of(&why))?)?;
        }
        Ok(())
    }

    /// Sends statements, and returns the first error if any fails.
    pub(crate) async fn all(&self, sends: &[Message]) -> Result<Vec<Answer>, Error> {
        let answers = self.exchange(sends).await.into_iter();
        answers.collect::<Result<_, _>>().map_err(|why| of(&why))
    }
}

/// Makes each transaction of a connection serializable, and checks that it is.
async fn level(client: &Client) -> Result<(), Error> {
    let texts = [
        "SHOW transaction_read_only",
        // Unknown to other engines than PostgreSQL.
        "SHOW in_hot_standby",
        "SET default_transaction_isolation = 'serializable'",
        "SHOW default_transaction_isolation",
        // A scan of a whole table would lock it all: every other transaction would be in conflict.
        "SET enable_seqscan = off",
    ];
    let shows = texts.map(|text| Box::pin(shown(client, text)));
    let said = in_order(shows.into()).await;
    let is = |at: usize, word: &str| matches!(&said[at], Ok(said) if said == word);
    if is(1, "on") {
        return Err(server(ServerFailure::Recovery, ""));
    }
    if is(0, "on") {
        return Err(server(ServerFailure::ReadOnly, ""));
    }
    for at in [0, 2, 3] {
        if let Err(why) = &said[at] {
            return Err(of(why));
        }
    }
    match &said[3] {
        Ok(level) if level == "serializable" => Ok(()),
        Ok(level) => Err(server(ServerFailure::Isolation, format!("it reports {level}"))),
        Err(why) => Err(of(why)),
    }
}

/// Checks the tables, and creates them if there are none.
async fn tables(client: &Client, copying: bool) -> Result<(), Error> {
    let mut rounds = 0;
    loop {
        let messages = client.simple_query(COLUMNS).await.map_err(|why| of(&why))?;
        let found: Vec<_> = cells(&messages).collect();
        if found.iter().eq(OURS.iter()) {
            break;
        }
        let hidden =
            |(row, ours): (&Vec<String>, &[&str; 5])| row[..4] == ours[..4] && row[4] == "0";
        if found.len() == OURS.len() && found.iter().zip(&OURS).all(hidden) {
            let what = "SELECT, INSERT, UPDATE and DELETE on latchwork_records, latchwork_tables";
            return Err(server(ServerFailure::Privilege, what));
        }
        if found.iter().any(|row| !OURS.iter().any(|ours| row == ours)) || rounds == ROUNDS {
            let names = found.iter().map(|row| format!("{}.{} {}", row[0], row[1], row[2]));
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(server(ServerFailure::ForeignTable, format!("it has {names}")));
        }
        // Another program may create them at the same time: then look again.
        for text in CREATE {
            match client.batch_execute(text).await.map_err(|why| of(&why)) {
                Err(Error::Server(why)) if is_race(&why.state) => {}
                other => other?,
            }
        }
        rounds += 1;
    }
    let mark = format!(
        "INSERT INTO latchwork_tables (tree, name, key_type, version) \
         VALUES (0, '', 'latchwork', {FORMAT}) ON CONFLICT (tree) DO NOTHING"
    );
    let look = "SELECT key_type, version, coalesce(value_type, '') FROM latchwork_tables \
                WHERE tree = 0";
    for _ in 0..ROUNDS {
        let messages = client.simple_query(look).await.map_err(|why| of(&why))?;
        let Some(row) = cells(&messages).next() else {
            match client.batch_execute(&mark).await.map_err(|why| of(&why)) {
                Err(why) if !why.is_retryable() => return Err(why),
                _ => continue,
            }
        };
        if row[0] != "latchwork" || row[1] != FORMAT.to_string() {
            let said = format!("format {} {}; this program knows {FORMAT}", row[0], row[1]);
            return Err(server(ServerFailure::ForeignTable, said));
        }
        if !row[2].is_empty() && !copying {
            return Err(server(ServerFailure::Copying, ""));
        }
        return Ok(());
    }
    Err(server(ServerFailure::ForeignTable, "the row of the format is missing"))
}

/// How often the tables are looked for while other programs create them.
const ROUNDS: usize = 20;

/// Whether the creation of a table met that of another program.
fn is_race(state: &str) -> bool {
    // A duplicate table, or row of the catalog, or an object that changed at the same time.
    matches!(state, "42P07" | "23505" | "40001" | "42710" | "XX000")
}
