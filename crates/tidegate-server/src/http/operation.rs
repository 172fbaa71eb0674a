//! What the document says about one method at one address.

use http::StatusCode;
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

use super::bodies::DecisionBody;
use super::problem::{Problem, ProblemBody};

/// What the document says about one method at one address.
pub(super) struct Operation {
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) caller: Caller,
    pub(super) parameters: Vec<Value>,
    pub(super) body: Option<Content>,
    pub(super) answers: Vec<Answer>,
    pub(super) problems: Vec<StatusCode>,
}

/// Who may call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Caller {
    /// Anybody.
    Anybody,
    /// Whoever shows the token, if there is one.
    Asker,
    /// A proxy that shows the token, if there is one.
    Proxy,
    /// Whoever shows the admin token.
    Admin,
}

/// One answer that is not a problem, or a problem that only this operation has.
pub(super) struct Answer {
    /// A status, or a class of them like `4XX`.
    pub(super) status: String,
    pub(super) says: &'static str,
    pub(super) content: Option<Content>,
    pub(super) headers: Headers,
    /// The media type of a stream of such answers.
    pub(super) streamed_as: Option<&'static str>,
}

/// A body that is sent or answered.
pub(super) struct Content {
    pub(super) media_type: &'static str,
    pub(super) schema: fn(&mut SchemaGenerator) -> Schema,
    pub(super) example: Value,
}

/// What the headers of an answer tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Headers {
    /// Nothing.
    Nothing,
    /// How the limits stand.
    Limits,
    /// That, and when to come back.
    Denial,
}

impl Content {
    fn new<T: JsonSchema>(media_type: &'static str, example: Value) -> Self {
        Self { media_type, schema: SchemaGenerator::subschema_for::<T>, example }
    }
}

impl Operation {
    pub(super) fn new(id: &'static str, caller: Caller, summary: &'static str) -> Self {
        let (parameters, answers, problems) = (Vec::new(), Vec::new(), Vec::new());
        Self { id, summary, caller, parameters, body: None, answers, problems }
    }

    /// It takes this in JSON.
    pub(super) fn takes<T: JsonSchema>(mut self, example: Value) -> Self {
        self.body = Some(Content::new::<T>("application/json", example));
        self
    }

    /// It looks at these parameters.
    pub(super) fn reads(mut self, parameters: impl IntoIterator<Item = Value>) -> Self {
        self.parameters.extend(parameters);
        self
    }

    /// It answers this in JSON.
    pub(super) fn answers<T: JsonSchema>(
        self,
        status: u16,
        says: &'static str,
        example: Value,
    ) -> Self {
        let content = Content::new::<T>("application/json", example);
        self.answer(status.to_string(), says, Some(content), Headers::Nothing)
    }

    /// It answers the same as events, one after the other, to those who ask for them.
    pub(super) fn or_streams(mut self, media_type: &'static str) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.streamed_as = Some(media_type);
        }
        self
    }

    /// It answers in plain text.
    pub(super) fn answers_text(self, says: &'static str, example: &str) -> Self {
        let content = Content::new::<String>("text/plain", example.into());
        self.answer("200".into(), says, Some(content), Headers::Nothing)
    }

    /// It answers with a status alone.
    pub(super) fn answers_nothing(self, status: u16, says: &'static str, headers: Headers) -> Self {
        self.answer(status.to_string(), says, None, headers)
    }

    /// It answers with a decision: 200, and then headers about limits; or 429, and then also when
    /// to come back.
    pub(super) fn decides(self, status: u16, says: &'static str, example: Value) -> Self {
        let content = Content::new::<DecisionBody<'_>>("application/json", example);
        let headers = if status == 200 { Headers::Limits } else { Headers::Denial };
        self.answer(status.to_string(), says, Some(content), headers)
    }

    /// A denial is a problem, of a status that the caller may choose.
    pub(super) fn denies(mut self, example: &Value) -> Self {
        for (status, says) in [
            ("429", "Denied."),
            ("4XX", "Denied, where `deny_status` asks for such a status."),
            ("5XX", "Denied, where `deny_status` asks for such a status."),
        ] {
            let content = Content::new::<ProblemBody>(Problem::CONTENT_TYPE, example.clone());
            self = self.answer(status.into(), says, Some(content), Headers::Denial);
        }
        self
    }

    /// It can fail with these.
    pub(super) fn fails(mut self, statuses: &[u16]) -> Self {
        let statuses = statuses.iter().filter_map(|status| StatusCode::from_u16(*status).ok());
        self.problems.extend(statuses);
        self
    }

    fn answer(
        mut self,
        status: String,
        says: &'static str,
        content: Option<Content>,
        headers: Headers,
    ) -> Self {
        self.answers.push(Answer { status, says, content, headers, streamed_as: None });
        self
    }
}
