//! temporary
use super::super::{Failure, out::Out, settings::Settings};
use super::args::Storing;
use baton_proto::ids::BlobId;
use baton_walrus_client::http_store::{Stored, WriteOptions};
pub struct Ledger;
#[derive(serde::Serialize)]
pub struct L {
    pub surely_until_ms: u64,
}
pub fn load(_: &Settings) -> Result<Ledger, Failure> {
    Ok(Ledger)
}
pub fn show(_: &Ledger, _: &Settings, _: &Out) -> Result<(), Failure> {
    Ok(())
}
pub fn lifetime(_: &Ledger, _: &Settings, _: BlobId) -> Option<L> {
    None
}
pub fn remember(_: &Settings, _: &Stored, _: &WriteOptions) -> Result<(), Failure> {
    Ok(())
}
pub async fn renew(_: &Settings, _: &[String], _: Option<u32>, _: &Storing, _: &Out) -> Result<(), Failure> {
    Ok(())
}
