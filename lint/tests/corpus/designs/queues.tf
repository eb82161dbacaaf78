locals {
  minutes = 60
}

resource "aws_sqs_queue" "orders" {
  name                       = "orders"
  visibility_timeout_seconds = 30 # shorter than the function
  message_retention_seconds  = 4 * 86400
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.orders_dead.arn
    maxReceiveCount     = 5
  })
}

resource "aws_sqs_queue" "orders_dead" {
  name = "orders-dead"
}

resource "aws_sqs_queue" "mails" {
  name                        = "mails.fifo"
  fifo_queue                  = true
  content_based_deduplication = true
  visibility_timeout_seconds  = 120
}

resource "aws_sqs_queue" "unread" {
  name = "unread"
}

resource "aws_lambda_function" "pay" {
  function_name = "pay"
  timeout       = 60
  environment {
    variables = {
      TABLE = "orders"
    }
  }
}

resource "aws_lambda_function" "mail" {
  function_name = "mail"
  timeout       = 10
}

resource "aws_lambda_event_source_mapping" "pay" {
  event_source_arn = aws_sqs_queue.orders.arn
  function_name    = aws_lambda_function.pay.arn
}

resource "aws_lambda_event_source_mapping" "mail" {
  event_source_arn = aws_sqs_queue.mails.arn
  function_name    = aws_lambda_function.mail.function_name
}

resource "google_pubsub_subscription" "audit" {
  name  = "audit"
  topic = google_pubsub_topic.audit.id
}
