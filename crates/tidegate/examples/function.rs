//! A limit on a function, counted per author.

use tidegate::{Limited, rate_limit};

#[rate_limit("2/min", key = author)]
async fn create_post(author: &str, body: String) -> Result<usize, Limited> {
    Ok(body.len())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    for author in ["alice", "alice", "alice", "bob"] {
        match create_post(author, "hello".to_string()).await {
            Ok(bytes) => println!("{author}: posted {bytes} bytes"),
            Err(limited) => println!("{author}: {limited}"),
        }
    }
}
