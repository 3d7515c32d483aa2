//! `GET /v1/responses/{id}/input_items`: what a response was given, in pages.

use crate::error::ApiError;
use crate::fields::quoted;
use serde_json::{Value, json};

/// Items of a page that does not say how many.
const PAGE: usize = 20;
const LARGEST_PAGE: usize = 100;

/// The page of `items` that a URL's query asks for.
pub(crate) fn page(mut items: Vec<Value>, query: Option<&str>) -> Result<Value, ApiError> {
    let (mut limit, mut after, mut ascending) = (PAGE, None, false);
    for (name, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
        match name {
            "limit" => {
                limit = value.parse().ok().filter(|count| (1..=LARGEST_PAGE).contains(count)).ok_or_else(wrong_limit)?
            }
            "after" => after = Some(value),
            "order" => ascending = is_ascending(value)?,
            _ => {}
        }
    }
    if !ascending {
        items.reverse();
    }
    let start = match after {
        None => 0,
        Some(id) => 1 + items.iter().position(|item| item["id"] == id).ok_or_else(|| unknown_item(id))?,
    };
    let has_more = items.len() > start + limit;
    let page: Vec<Value> = items.into_iter().skip(start).take(limit).collect();
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first, last) = (id(page.first()), id(page.last()));
    Ok(json!({"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": has_more}))
}

fn is_ascending(order: &str) -> Result<bool, ApiError> {
    match order {
        "asc" => Ok(true),
        "desc" => Ok(false),
        other => {
            let message = format!("'order' must be asc or desc, not {}.", quoted(other));
            Err(ApiError::parameter("order", message).unlogged())
        }
    }
}

fn wrong_limit() -> ApiError {
    ApiError::parameter("limit", format!("'limit' must be an integer between 1 and {LARGEST_PAGE}."))
}

fn unknown_item(id: &str) -> ApiError {
    ApiError::parameter("after", format!("'after' is {}, which is not among the items.", quoted(id))).unlogged()
}

#[cfg(test)]
mod tests {
    use super::page;
    use serde_json::{Value, json};

    fn ids(query: &str) -> (Vec<String>, Value) {
        let items = (0..30).map(|number| json!({"id": format!("i{number}")})).collect();
        let page = page(items, Some(query)).expect("fine");
        let ids =
            page["data"].as_array().expect("items").iter().map(|item| item["id"].as_str().expect("id").to_owned());
        let ids: Vec<String> = ids.collect();
        assert_eq!(
            [&page["first_id"], &page["last_id"]].map(Value::as_str),
            [ids.first(), ids.last()].map(|id| id.map(String::as_str))
        );
        (ids, page["has_more"].clone())
    }

    #[test]
    fn pages_follow_each_other() {
        let (newest, more) = ids("");
        assert_eq!((newest.len(), newest[0].as_str(), more), (20, "i29", json!(true)));
        let (rest, more) = ids("after=i10&order=desc");
        assert_eq!((rest.len(), rest[0].as_str(), more), (10, "i9", json!(false)));
        let (oldest, more) = ids("limit=2&order=asc&include=x");
        assert_eq!((oldest, more), (vec!["i0".to_owned(), "i1".to_owned()], json!(true)));
        assert_eq!(ids("order=asc&after=i29").0, [""; 0]);
        for (query, param) in
            [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=i30", "after")]
        {
            let error = page(vec![json!({"id": "i0"})], Some(query)).expect_err("wrong");
            assert_eq!(error.body()["error"]["param"], param);
        }
    }
}
