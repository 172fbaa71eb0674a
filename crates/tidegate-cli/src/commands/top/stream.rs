//! Stream of snapshots, with reconnect.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::error::CliError;
use crate::http_client::{EventStream, ServerClient};
use tidegate_server::internal::observe::traffic::TrafficSnapshot;

/// With one minute of history.
const PATH: &str = "/v1/live?seconds=60";
/// The connection counts as lost after this long without a snapshot.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait before a reconnect.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Snapshots of a server. A task reads them and reconnects.
pub(crate) struct SnapshotSource(mpsc::Receiver<StreamUpdate>);

pub(crate) enum StreamUpdate {
    Snapshot {
        snapshot: Box<TrafficSnapshot>,
        /// The event as received.
        json: String,
    },
    /// The connection is lost, with the reason.
    Lost(String),
}

impl SnapshotSource {
    /// Fails if the server cannot be reached.
    pub(crate) async fn open(client: Arc<ServerClient>) -> Result<Self, CliError> {
        let events = client.follow(PATH).await?;
        // One slot: with a slow reader the server skips snapshots.
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(follow(client, events, sender));
        Ok(Self(receiver))
    }

    /// The next update. Fails only if the task has panicked.
    pub(crate) async fn next(&mut self) -> Result<StreamUpdate, CliError> {
        let update = self.0.recv().await;
        Ok(update.ok_or("the event stream has ended; restart tidegate top")?)
    }
}

async fn follow(
    client: Arc<ServerClient>,
    events: EventStream,
    sender: mpsc::Sender<StreamUpdate>,
) {
    let mut events: Result<EventStream, CliError> = Ok(events);
    loop {
        let why = match events {
            Ok(events) => forward(events, &sender).await,
            Err(why) => why.to_string(),
        };
        if sender.send(StreamUpdate::Lost(why)).await.is_err() {
            return;
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
        events = client.follow(PATH).await;
    }
}

/// Forwards snapshots until the stream ends; returns why it ended.
async fn forward(mut events: EventStream, sender: &mpsc::Sender<StreamUpdate>) -> String {
    loop {
        let json = match tokio::time::timeout(IDLE_TIMEOUT, events.next()).await {
            Err(_) => return "no data from the server".into(),
            Ok(Err(error)) => return format!("connection lost ({error})"),
            Ok(Ok(None)) => return "the server closed the stream".into(),
            Ok(Ok(Some(json))) => json,
        };
        let update = match serde_json::from_str(&json) {
            Ok(snapshot) => StreamUpdate::Snapshot { snapshot, json },
            Err(error) => {
                return format!(
                    "cannot parse the snapshot ({error}); is the server the same version?"
                );
            }
        };
        if sender.send(update).await.is_err() {
            return String::new();
        }
    }
}
