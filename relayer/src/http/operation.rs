//! One operation of memory, a row of the table in [`mod@super::operations`]. Its route, its entry in the OpenAPI
//! document and its tool for agents are made from the row and the types of its handler.

use std::{future::Future, sync::Arc};

use axum::{
    Json, RequestExt as _, Router,
    extract::{Query, RawPathParams, Request},
    http::{Method, StatusCode, Uri},
    response::{IntoResponse as _, Response},
    routing::{MethodFilter, on},
};
use baton_memory::ids::OwnerId;
use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    ApiError, AppState,
    api_error::{INTERNAL, RequestId, SCOPE, UNAUTHENTICATED},
    document::{self, JSON, Schemas},
    extract::read_json,
    gate::{self, GateRoute},
    limits::BODY_BYTES,
};
use crate::{auth::Caller, delegation::Scope};

/// The field of an operation's entry with its name as a tool for agents.
pub(super) const TOOL: &str = "x-tool";

type Handler = Arc<dyn Fn(Call, Payload) -> BoxFuture<'static, Result<Response, ApiError>> + Send + Sync>;

/// The effect of an operation on the owner's memory, which decides its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Changes nothing, and needs no room on the disk.
    Reads,
    /// Changes stored values. It passes while the budget of bytes is used up, as a removal does.
    Changes,
    /// Deletes for good.
    Removes,
    /// Adds values. It is refused while the budget of bytes is used up.
    Adds,
}

/// An admitted request, apart from its values.
pub(super) struct Call {
    pub(super) app: AppState,
    pub(super) caller: Caller,
    /// The name or id in the path; empty for a path without one.
    pub(super) target: String,
    pub(super) request_id: RequestId,
}

impl Call {
    /// The owner of the memory.
    pub(super) fn owner(&self) -> OwnerId {
        self.caller.owner
    }

    /// The only entry to memory.
    pub(super) fn memory(&self) -> &baton_memory::Memory {
        self.app.memory()
    }
}

/// The values of a request, as they were sent.
pub(super) enum Payload {
    /// The body, within the route's limit.
    Body(Bytes),
    /// The query of this URI.
    Query(Uri),
}

/// The type of an operation's request.
pub(super) trait Input: Sized + Send + 'static {
    /// The parameters, and the body, of an operation's entry in the document.
    fn documented(in_query: bool, schemas: &mut Schemas) -> (Vec<Value>, Option<Value>);

    /// Reads it.
    ///
    /// # Errors
    /// A 400 with the reason.
    fn read(payload: Payload) -> Result<Self, ApiError>;
}

impl<T: DeserializeOwned + ToSchema + Send + 'static> Input for T {
    fn documented(in_query: bool, schemas: &mut Schemas) -> (Vec<Value>, Option<Value>) {
        let schema = json!(T::schema());
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        if !in_query {
            // An empty body is read as `{}`.
            let schema = document::reference::<T>(schemas);
            return (Vec::new(), Some(document::body(JSON, schema, !required.is_empty())));
        }
        T::schemas(schemas);
        let parameter = |(name, field): (&String, &Value)| {
            let mut field = field.clone();
            // A query has no null.
            field.as_object_mut().and_then(|field| field.remove("default"));
            let kinds = field["type"].as_array().map(|kinds| kinds.iter().filter(|kind| **kind != "null"));
            if let Some(kind) = kinds.and_then(|mut kinds| kinds.next().cloned()) {
                field["type"] = kind;
            }
            json!({ "name": name, "in": "query", "required": required.contains(&json!(name)), "schema": field })
        };
        (schema["properties"].as_object().into_iter().flatten().map(parameter).collect(), None)
    }

    fn read(payload: Payload) -> Result<Self, ApiError> {
        match payload {
            Payload::Body(body) => read_json(&body),
            Payload::Query(uri) => {
                let read = Query::<T>::try_from_uri(&uri);
                read.map(|Query(value)| value).map_err(|rejection| ApiError::bad(rejection.body_text()))
            }
        }
    }
}

/// A request without values. Sent ones are not read.
pub(super) struct NoInput;

impl Input for NoInput {
    fn documented(in_query: bool, _: &mut Schemas) -> (Vec<Value>, Option<Value>) {
        (Vec::new(), (!in_query).then(|| document::body(JSON, json!({ "type": "object" }), false)))
    }

    fn read(_: Payload) -> Result<Self, ApiError> {
        Ok(Self)
    }
}

/// The type of an operation's answer.
pub(super) trait Answer: Send + 'static {
    /// Its status, and its response in the document.
    fn documented(schemas: &mut Schemas) -> (u16, Value);

    /// Its sent form.
    fn respond(self) -> Response;
}

impl<T: Serialize + ToSchema + Send + 'static> Answer for T {
    fn documented(schemas: &mut Schemas) -> (u16, Value) {
        (200, document::answer(JSON, document::reference::<T>(schemas)))
    }

    fn respond(self) -> Response {
        Json(self).into_response()
    }
}

/// An answer to a write whose content is not on Walrus yet.
pub(super) struct AcceptedAnswer<T>(pub(super) T);

impl<T: Serialize + ToSchema + Send + 'static> Answer for AcceptedAnswer<T> {
    fn documented(schemas: &mut Schemas) -> (u16, Value) {
        (202, T::documented(schemas).1)
    }

    fn respond(self) -> Response {
        (StatusCode::ACCEPTED, Json(self.0)).into_response()
    }
}

/// The answer of an operation that always fails.
pub(super) enum NoAnswer {}

impl Answer for NoAnswer {
    fn documented(_: &mut Schemas) -> (u16, Value) {
        (501, document::error(501))
    }

    fn respond(self) -> Response {
        match self {}
    }
}

/// A row of the table.
#[derive(Clone)]
pub(super) struct Operation {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// The right that a delegation must have.
    right: Scope,
    pub(super) effect: Effect,
    /// Most bytes of the body.
    body_bytes: usize,
    /// Its entry in the document.
    pub(super) documented: Value,
    /// The schemas that the entry names.
    pub(super) schemas: Schemas,
    handler: Handler,
}

impl Operation {
    /// An operation with this effect. A reader needs the right `read`, others `write`.
    pub(super) fn new<I: Input, A: Answer, F>(
        effect: Effect,
        method: Method,
        path: &'static str,
        handler: impl Fn(Call, I) -> F + Clone + Send + Sync + 'static,
        about: &'static str,
    ) -> Self
    where
        F: Future<Output = Result<A, ApiError>> + Send + 'static,
    {
        let mut documented = document::operation(method.as_str(), path, about, true);
        let mut schemas = Schemas::new();
        let (fields, body) = I::documented(reads_query(&method), &mut schemas);
        let target = target_of(path).map(
            |name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }),
        );
        documented["parameters"] = target.into_iter().chain(fields).collect();
        if let Some(body) = body {
            documented["requestBody"] = body;
        }
        let (status, answer) = A::documented(&mut schemas);
        documented["responses"][status.to_string()] = answer;
        let handler: Handler = Arc::new(move |call, payload| {
            let handler = handler.clone();
            Box::pin(async move { Ok(handler(call, I::read(payload)?).await?.respond()) })
        });
        let right = if effect == Effect::Reads { Scope::Read } else { Scope::Write };
        Self { method, path, right, effect, body_bytes: BODY_BYTES, documented, schemas, handler }
    }

    /// The operation with another right.
    pub(super) fn by(self, right: Scope) -> Self {
        Self { right, ..self }
    }

    /// The operation with another limit on its body.
    pub(super) fn up_to(self, body_bytes: usize) -> Self {
        Self { body_bytes, ..self }
    }

    /// The operation, which agents may call too, by this name.
    pub(super) fn tool(mut self, name: &'static str) -> Self {
        self.documented[TOOL] = name.into();
        self
    }

    /// The operation with a status of errors that few operations have.
    pub(super) fn or(mut self, status: u16) -> Self {
        self.documented["responses"][status.to_string()] = document::error(status);
        self
    }

    /// The operation in a group of the document.
    pub(super) fn tagged(mut self, tag: &str) -> Self {
        self.documented["tags"] = json!([tag]);
        self
    }

    /// Adds its route, behind the gate.
    pub(super) fn route(self, app: &AppState, router: Router) -> Router {
        let filter = MethodFilter::try_from(self.method.clone()).expect("the table has methods of routes");
        let (path, app, operation) = (self.path, app.clone(), Arc::new(self));
        let handler = move |request: Request| async move {
            let route =
                GateRoute { reads: operation.effect == Effect::Reads, body_bytes: operation.body_bytes };
            let run_app = app.clone();
            let run = move |request| async move {
                operation.answer(run_app, request).await.unwrap_or_else(ApiError::into_response)
            };
            gate::gate(&app, route, request, run).await
        };
        router.route(path, on(filter, handler))
    }

    async fn answer(&self, app: AppState, mut request: Request) -> Result<Response, ApiError> {
        let caller =
            request.extensions_mut().remove::<Caller>().ok_or_else(|| ApiError::new(UNAUTHENTICATED))?;
        let request_id = request.extensions().get::<RequestId>().cloned().unwrap_or_default();
        let target = match request.extract_parts::<RawPathParams>().await {
            Ok(parameters) => parameters.iter().next().map(|(_, value)| value.to_owned()),
            Err(rejection) => return Err(ApiError::bad(rejection.body_text())),
        };
        let payload = match reads_query(&self.method) {
            true => Payload::Query(request.uri().clone()),
            // The gate has read the body, within its limit.
            false => Payload::Body(
                axum::body::to_bytes(request.into_body(), self.body_bytes)
                    .await
                    .map_err(|_| ApiError::new(INTERNAL))?,
            ),
        };
        self.run(Call { app, caller, target: target.unwrap_or_default(), request_id }, payload).await
    }

    /// Runs it for an admitted caller.
    ///
    /// # Errors
    /// A 403 without its right, a 503 while the budget of bytes is used up, and those of the operation.
    pub(super) async fn run(&self, call: Call, payload: Payload) -> Result<Response, ApiError> {
        if !call.caller.may(self.right) {
            let right = self.right.name();
            return Err(ApiError::new(SCOPE).saying(format!("the delegation does not allow `{right}`")));
        }
        if self.effect == Effect::Adds {
            call.app.inner.config.budgets.check_bytes()?;
        }
        (self.handler)(call, payload).await
    }
}

/// The name of the parameter in a path, of which each path has at most one.
pub(super) fn target_of(path: &str) -> Option<&str> {
    path.split_once('{')?.1.split_once('}').map(|(name, _)| name)
}

/// Whether a request of this method has its values in the query.
fn reads_query(method: &Method) -> bool {
    [Method::GET, Method::DELETE].contains(method)
}
