//! What a server tells every second, and whether it is there.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::cli::Failure;
use crate::cli::client::{Client, Events};
use crate::live::Snapshot;

/// A minute of the past.
const PATH: &str = "/v1/live?seconds=60";
/// A server that says nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(10);
/// How long after it has gone it is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// A server that is followed, again and again.
pub(super) struct Source(mpsc::Receiver<News>);

/// What has come of it.
pub(super) enum News {
    /// What the server has seen.
    Seen {
        /// As it is.
        snapshot: Box<Snapshot>,
        /// As it was sent.
        json: String,
    },
    /// It is not there.
    Gone(String),
}

impl Source {
    /// Begins to follow a server that is there.
    pub(super) async fn open(client: Arc<Client>) -> Result<Self, Failure> {
        let events = client.follow(PATH).await?;
        // Whoever is slow sees fewer of them, since the server leaves them out.
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(follow(client, events, sender));
        Ok(Self(receiver))
    }

    /// The next news. They never end, unless whoever follows has failed.
    pub(super) async fn next(&mut self) -> Result<News, Failure> {
        let news = self.0.recv().await;
        Ok(news.ok_or("the server is not followed any more; start it again")?)
    }
}

async fn follow(client: Arc<Client>, events: Events, sender: mpsc::Sender<News>) {
    let mut events: Result<Events, Failure> = Ok(events);
    loop {
        let why = match events {
            Ok(events) => tell(events, &sender).await,
            Err(why) => why.to_string(),
        };
        if sender.send(News::Gone(why)).await.is_err() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
        events = client.follow(PATH).await;
    }
}

/// Passes on what is told, until there is nothing more. Tells why.
async fn tell(mut events: Events, sender: &mpsc::Sender<News>) -> String {
    loop {
        let json = match tokio::time::timeout(SILENCE, events.next()).await {
            Err(_) => return "the server says nothing any more".into(),
            Ok(Err(error)) => return format!("the server has gone ({error})"),
            Ok(Ok(None)) => return "the server has ended".into(),
            Ok(Ok(Some(json))) => json,
        };
        let news = match serde_json::from_str(&json) {
            Ok(snapshot) => News::Seen { snapshot, json },
            Err(error) => {
                return format!("cannot be read ({error}); is the server of this version?");
            }
        };
        if sender.send(news).await.is_err() {
            return String::new();
        }
    }
}
