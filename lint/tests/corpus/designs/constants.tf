locals {
  timeout = 120
}

variable "retention" {
  type    = number
  default = 1209600
}

resource "aws_sqs_queue" "jobs" {
  name                       = "${var.env}-jobs"
  visibility_timeout_seconds = 60
  message_retention_seconds  = var.retention
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.jobs_dlq.arn
    maxReceiveCount     = 4
  })
}

resource "aws_sqs_queue" "jobs_dlq" {
  name = "${var.env}-jobs-dlq"
}

resource "aws_sqs_queue" "mails" {
  name                       = "mails"
  visibility_timeout_seconds = 900
}

resource "aws_lambda_function" "jobs" {
  function_name = "jobs"
  handler       = "app.handler"
  runtime       = "python3.12"
  timeout       = local.timeout
}

resource "aws_lambda_function" "mails" {
  function_name = "mails"
  timeout       = 60
}

resource "aws_lambda_event_source_mapping" "jobs" {
  event_source_arn = aws_sqs_queue.jobs.arn
  function_name    = aws_lambda_function.jobs.function_name
  batch_size       = 10
}

resource "aws_lambda_event_source_mapping" "mails" {
  event_source_arn = aws_sqs_queue.mails.arn
  function_name    = aws_lambda_function.mails.arn
}

resource "aws_sqs_queue" "done" {
  name = "done"
}
