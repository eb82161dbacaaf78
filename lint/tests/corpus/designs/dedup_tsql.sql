SET ANSI_NULLS ON
GO
CREATE TABLE [dbo].[InboxState](
    [Id] [bigint] IDENTITY(1,1) NOT NULL,
    [MessageId] [uniqueidentifier] NOT NULL,
    [ConsumerId] [uniqueidentifier] NOT NULL,
    [Received] [datetime2](7) NOT NULL,
    [ReceiveCount] [int] NOT NULL,
    CONSTRAINT [PK_InboxState] PRIMARY KEY CLUSTERED ([Id] ASC),
    CONSTRAINT [AK_InboxState] UNIQUE NONCLUSTERED ([MessageId] ASC, [ConsumerId] ASC)
)
GO
CREATE TABLE [dbo].[ProcessedEvents](
    [Id] [bigint] IDENTITY(1,1) NOT NULL PRIMARY KEY,
    [EventId] [uniqueidentifier] NOT NULL,
    [ProcessedAt] [datetime2](7) NOT NULL
)
GO
CREATE TABLE [dbo].[HandledCommands](
    [Id] [bigint] IDENTITY(1,1) NOT NULL PRIMARY KEY,
    [CommandId] [uniqueidentifier] NOT NULL,
    [HandledAt] [datetime2](7) NOT NULL
)
GO
CREATE UNIQUE NONCLUSTERED INDEX [UX_HandledCommands] ON [dbo].[HandledCommands] ([CommandId])
GO
